"""`chunk`: batches encoded in parts, and again for their gradients, train as whole ones."""

from copy import deepcopy

import pytest
import torch

from selhn.base.errors import SelhnError, SelhnWarning
from selhn.losses import AOQ, NCR, InfoNCE, TripletHN, TripletSelHN
from selhn.training.config import TrainConfig
from selhn.training.loop import train
from selhn.training.protocols import Protocol, shares
from selhn.training.step import make_batches


@pytest.mark.parametrize(
    "loss", [TripletSelHN(), InfoNCE(learn=True), lambda scores: -scores.diagonal().mean()]
)
def test_a_run_in_chunks_is_the_run(tiny_model, tiny_data, tiny_config, loss):
    models = []
    for chunk in (0, 24):
        models.append(tiny_model("vse_fc"))
        train(models[-1], tiny_data, deepcopy(loss), config=tiny_config, epochs=1, chunk=chunk, quiet=True)
    for whole, again in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-5)


def gradients(tiny_model, tiny_data, **settings):
    """Of one batch in three chunks, and the running statistics after it."""
    config = TrainConfig(batch_size=64, device="cpu", chunk=24)
    model = tiny_model("rvse", **settings).double().train()
    batches = make_batches(model, tiny_data, config, torch.device("cpu"))
    protocol = Protocol(model, TripletSelHN(), tiny_data, batches, config)
    sizes, encode = [], model.encode_images
    model.encode_images = lambda regions, *given: sizes.append(len(regions)) or encode(regions, *given)
    torch.manual_seed(7)
    batch = batches.assemble(next(batches.steps(0))).each(
        lambda x: x.double() if x.is_floating_point() else x
    )
    scores = protocol.scored(model, batch).scores
    assert scores.images.shape == (64, 16)
    assert sizes == [22, 21, 21], "at most 24 at a time"
    protocol.loss.reduce(protocol.loss.statistics(scores, batch.image_ids)).backward()
    found = [x.grad for x in model.parameters() if x.grad is not None]
    return [*found, *model.buffers(), torch.rand(1)]


@pytest.mark.parametrize("settings", [{}, {"word_dropout": 0.5}, {"mask_bn": True}])
def test_chunks_are_encoded_again_with_the_same_random_numbers(tiny_model, tiny_data, monkeypatch, settings):
    found = gradients(tiny_model, tiny_data, **settings)
    monkeypatch.setattr(
        shares, "checkpoint", lambda function, *given, use_reentrant, context_fn: function(*given)
    )
    for own, plain in zip(found, gradients(tiny_model, tiny_data, **settings), strict=True):
        assert torch.equal(own, plain)


def test_batch_norms_are_named(tiny_model, tiny_data, tiny_config):
    with pytest.warns(SelhnWarning, match="rvse has batch norms"):
        train(tiny_model(), tiny_data, TripletHN(), config=tiny_config, epochs=1, chunk=40, quiet=True)


@pytest.mark.parametrize(
    ("model", "loss", "settings"),
    [
        ("scan_t2i_avg", TripletHN(), {}),
        ("vsrn", TripletHN(), {}),
        ("vse_fc", NCR(warmup_epochs=0), {}),
        ("vse_fc", AOQ(), {}),
        ("scan_t2i_avg", TripletHN(), {"two_pass": True}),
    ],
)
def test_what_cannot_be_done_in_chunks(tiny_model, tiny_data, tiny_config, model, loss, settings):
    with pytest.raises(SelhnError):
        train(tiny_model(model), tiny_data, loss, config=tiny_config, chunk=16, quiet=True, **settings)


def test_scores_that_depend_on_other_images_need_whole_batches(tiny_model, tiny_data, tiny_config):
    model = tiny_model()
    model.images_apart = False
    with pytest.raises(SelhnError, match="depend on the other pairs"):
        train(model, tiny_data, TripletHN(), config=tiny_config, chunk=16, quiet=True)
