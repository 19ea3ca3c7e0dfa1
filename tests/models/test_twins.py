import pytest
import torch
from model_cases import CASES, make_batch, make_model, score_batch

from selhn.base.errors import SelhnError
from selhn.data import load_data
from selhn.eval import evaluate, pair_attention
from selhn.export import towers_of
from selhn.models import Twins, create_model, encode_batch, load_model
from selhn.search import Index
from selhn.text import Vocabulary
from selhn.training.optim import parameter_groups

every_model = pytest.mark.parametrize("name", CASES)


@every_model
def test_a_batch_has_the_scores_of_both_and_all_else_their_mean(name):
    model, batch = make_model(name, networks=2), make_batch()
    assert isinstance(model, Twins)
    apart = [network(batch).scores for network in model.both]
    assert not torch.allclose(apart[0], apart[1]), "two networks with the same weights"
    match = model(batch)
    assert torch.equal(match.scores, torch.stack(apart))
    mean = (apart[0] + apart[1]) / 2
    torch.testing.assert_close(score_batch(model, batch), mean, rtol=1e-5, atol=1e-6)
    images, texts = encode_batch(model, batch)
    torch.testing.assert_close(model.activation(model.logits(images, texts)), mean, rtol=1e-5, atol=1e-6)
    if model.is_embedding:
        torch.testing.assert_close(images @ texts.T, mean, rtol=1e-5, atol=1e-6)


@every_model
def test_one_folder_holds_both(name, tmp_path):
    model, batch = make_model(name, networks=2), make_batch()
    model.save(tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.settings == model.settings
    assert model.settings["networks"] == 2
    assert torch.equal(again(batch).scores, model(batch).scores)


def test_each_network_learns_from_its_own_scores_and_all_parts_are_watched():
    model, batch = make_model("rvse", networks=2).train(), make_batch()
    model(batch).scores[0].sum().backward()
    first, second = model.both
    assert first.image.fc.weight.grad.any()
    assert not any(parameter.grad is not None and parameter.grad.any() for parameter in second.parameters())
    assert set(model.watched) == {prefix + name for name in first.watched for prefix in ("", "second_")}


def test_both_berts_have_the_low_rate():
    model = make_model("rvsepp", networks=2)
    for group, of_one in zip(parameter_groups(model, 1.0), parameter_groups(model.both[0], 1.0), strict=True):
        assert group["lr"] == of_one["lr"]
        assert len(group["params"]) == 2 * len(of_one["params"])


def test_sigmoids_that_are_all_1_still_rank():
    model = make_model("saf", networks=2)
    with torch.no_grad():
        for network in model.both:
            network.head.last.bias.fill_(60.0)
    images, texts = encode_batch(model, make_batch())
    assert (model.score(images, texts) == 1).all()
    assert model.logits(images, texts).unique().numel() > 6


def test_evaluation_search_and_what_is_refused(tmp_path):
    data = load_data("world", images=20)
    settings = {"tokenizer": Vocabulary.build(data.train.captions), "feature_dim": data.feature_dim, "dim": 8}
    twins = create_model("rvse", networks=2, **settings)
    assert evaluate(twins, data.test).rsum > 0
    assert len(Index.build(towers_of(twins), data.test, tmp_path / "index").search("a red ball", k=3)) == 3
    attending = create_model("scan_t2i_avg", networks=2, **settings)
    assert evaluate(attending, data.test).rsum > 0
    with pytest.raises(SelhnError, match="single vector"):
        Index.build(towers_of(attending), data.test)
    with pytest.raises(SelhnError, match="attention"):
        pair_attention(attending, data.test, 0, "a red ball")
    for number in (0, 3):
        with pytest.raises(SelhnError, match="networks"):
            create_model("rvse", networks=number, **settings)
