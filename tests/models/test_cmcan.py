import pytest
import torch
from model_cases import make_batch, make_model, score_batch

from selhn.base.errors import SelhnError
from selhn.models import encode_batch


def test_a_region_stands_in_for_the_neighbours_it_lacks():
    model, batch = make_model("cmcan"), make_batch()
    batch.region_mask.fill_(True)
    batch.side["adjacency"] = torch.eye(5, dtype=torch.bool).expand(6, 5, 5)
    images, _ = encode_batch(model, batch)
    around = images.edges[..., 0] @ images.vectors
    # Alone, each is itself, divided by the length of the pooled vector of its image.
    ratio = around.norm(dim=2)
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))
    torch.testing.assert_close(around / ratio[..., None], images.vectors)


def test_neighbours_count():
    model, batch = make_model("cmcan"), make_batch()
    before = score_batch(model, batch)
    batch.side["adjacency"] = batch.side["adjacency"].flip(1)
    assert not torch.allclose(before, score_batch(model, batch))
    with pytest.raises(SelhnError):
        model.encode_images(batch.regions)
