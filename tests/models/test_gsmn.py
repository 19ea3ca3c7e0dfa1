import pytest
import torch
from model_cases import make_batch, make_model, score_batch

from selhn.base.errors import SelhnError
from selhn.models import create_model, encode_batch
from selhn.models.gsmn import parsed
from selhn.ops.block_cosines import block_cosines


def changed(batch, **side):
    return type(batch)(batch.regions, batch.region_mask, batch.tokens, batch.token_mask, batch.image_ids,
                       {**batch.side, **side})  # fmt: skip


def test_words_that_a_parse_joins():
    pairs = torch.tensor([[[0, 2], [2, 1], [3, 2], [-1, -1], [9, 1]]])
    joined = parsed(pairs, 5)[0]
    assert joined.nonzero().tolist() == [[1, 2], [2, 1], [2, 3], [3, 2]]


def test_neighbours_are_heard():
    batch = make_batch()
    other_boxes = changed(batch, boxes=batch.side["boxes"].flip(2))
    other_parse = changed(batch, dependencies=batch.side["dependencies"].flip(1) % 4)
    sparse, dense = make_model("gsmn_sparse"), make_model("gsmn_dense")
    for model in (sparse, dense):
        assert not torch.allclose(score_batch(model, batch), score_batch(model, other_boxes))
    assert not torch.allclose(score_batch(sparse, batch), score_batch(sparse, other_parse))
    assert torch.equal(score_batch(dense, batch), score_batch(dense, other_parse))
    del batch.side["dependencies"]
    torch.testing.assert_close(
        score_batch(sparse, batch), score_batch(dense, batch), msg="dense without a parse"
    )


def test_with_their_own_vectors_words_are_no_graph():
    batch = make_batch()
    sparse, dense = (make_model(name, own_vectors=True) for name in ("gsmn_sparse", "gsmn_dense"))
    torch.testing.assert_close(score_batch(sparse, batch), score_batch(dense, batch))
    # The weights of all kernels sum to 1 for each pair of regions: to their number for each region.
    images, _ = encode_batch(dense, batch)
    number = batch.region_mask.sum(1, keepdim=True).expand(-1, 5).float()
    torch.testing.assert_close(images.edges.sum((2, 3))[batch.region_mask], number[batch.region_mask])


def test_cosines_in_blocks():
    weights, contexts, queries = torch.rand(3, 2, 4, 5), torch.randn(3, 5, 6), torch.randn(2, 4, 6)
    inputs = [x.double().requires_grad_() for x in (weights, contexts, queries)]
    seen = torch.einsum("cqlk,ckd->cqld", *inputs[:2]).unflatten(3, (3, 2))
    expected = torch.cosine_similarity(seen, inputs[2].unflatten(2, (3, 2))[None], dim=4)
    torch.testing.assert_close(block_cosines(*inputs, 3), expected)
    assert torch.autograd.gradcheck(lambda *x: block_cosines(*x, 3), inputs)
    aligned = [inputs[0][:, :1], inputs[1], torch.randn(3, 4, 6, dtype=torch.float64).requires_grad_()]
    assert torch.autograd.gradcheck(
        lambda *x: block_cosines(*x, 2), [x.detach().requires_grad_() for x in aligned]
    )


def test_what_cannot_be_is_refused():
    with pytest.raises(SelhnError, match="blocks"):
        create_model("gsmn_dense", vocab_size=9, dim=16, blocks=5)
    model, batch = make_model("gsmn_dense"), make_batch()
    with pytest.raises(SelhnError, match="boxes"):
        model.encode_images(batch.regions)
