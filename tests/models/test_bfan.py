import pytest
import torch
from model_cases import make_batch, make_model
from model_oracle import cosines, fragments


@pytest.mark.parametrize("focus", ["equal", "prob"])
@pytest.mark.parametrize("training", [False, True])
def test_equals_a_loop_over_pairs_written_from_the_paper(focus, training):
    model = make_model(f"bfan_{focus}").double().train(training)
    batch = make_batch(pairs=4, dtype=torch.float64)
    images, texts = fragments(model, batch)
    assert max(map(len, images)) > 1

    def mean(looking, seen):
        # One fragment alone has no average to be above of: there the formula is 0/0, and ours looks at it.
        return torch.stack(cosines(looking, seen, 20.0, focus if len(seen) > 1 else None)).mean()

    naive = torch.stack([torch.stack([mean(w, r) + mean(r, w) for w in texts]) for r in images])
    scores = model(batch).scores
    torch.testing.assert_close(scores, naive, rtol=0, atol=1e-10)
    weights = torch.randn(4, 4, dtype=torch.float64)
    parameters = list(model.parameters())
    ours = torch.autograd.grad((scores * weights).sum(), parameters)
    for mine, theirs in zip(ours, torch.autograd.grad((naive * weights).sum(), parameters), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)


def test_the_two_differ_only_in_what_they_keep():
    equal, prob, batch = make_model("bfan_equal"), make_model("bfan_prob"), make_batch()
    assert equal.state_dict().keys() == prob.state_dict().keys()
    assert not torch.allclose(equal(batch).scores, prob(batch).scores)
