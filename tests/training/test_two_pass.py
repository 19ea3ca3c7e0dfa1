import copy

import pytest
import torch
from model_cases import CASES, make_batch, make_model, without_dropout
from torch._subclasses.fake_tensor import FakeTensorMode

from selhn.base.errors import SelhnError
from selhn.losses import SCT, InfoNCE, SigLIP, Triplet, TripletHN, TripletSelHN, TripletSHN, TripletWarmUp
from selhn.models import MODELS, create_model
from selhn.runs import read_log
from selhn.training.config import TrainConfig
from selhn.training.loop import train
from selhn.training.optim import AdamW
from selhn.training.protocols import Protocol
from selhn.training.protocols.two_pass import match_in_two_passes, pulled_pairs, require_two_pass
from selhn.training.step import make_batches, training_step

ELIGIBLE = [
    name
    for name, entry in MODELS.items()
    if entry.family == "cross-attention" and name not in ("saf", "naaf")
]


def warmed_up():
    loss = TripletWarmUp(warmup_epochs=1)
    loss.set_epoch(1)
    return loss


LOSSES = {
    "hn": TripletHN,
    "hn, sum": TripletHN.official,
    "shn": TripletSHN,
    "shn, nca": TripletSHN.official,
    "sct": SCT,
    "sct, nca": SCT.official,
    "warmed up": warmed_up,
}


def gradients(model, match, loss, image_ids):
    value = loss(match.scores, image_ids=image_ids)
    parameters = {key: p for key, p in model.named_parameters() if p.requires_grad}
    got = torch.autograd.grad(value, list(parameters.values()))
    return value.detach(), dict(zip(parameters, got, strict=True))


def assert_the_same_step(model, batch, loss, image_ids):
    state = copy.deepcopy(model.state_dict())
    one = model(batch)
    value, expected = gradients(model, one, loss, image_ids)
    model.load_state_dict(state)  # encoders may count batches
    two = match_in_two_passes(model, batch, loss, image_ids)
    assert torch.equal(two.scores, one.scores)
    value_of_two, got = gradients(model, two, loss, image_ids)
    assert torch.equal(value_of_two, value)
    for key, grad in expected.items():
        torch.testing.assert_close(got[key], grad, rtol=1e-8, atol=1e-12, msg=key)
    return any(grad.any() for grad in expected.values())


# Every model, which scores pairs in its own way, and every loss, which takes its own maxima.
STEPS = [(name, loss, 7) for name in ELIGIBLE for loss in ("hn", "sct, nca")]
STEPS += [("scan_t2i_avg", loss, pairs) for loss in LOSSES for pairs in (2, 7)]


@pytest.mark.parametrize(("name", "loss", "pairs"), dict.fromkeys(STEPS))
def test_value_and_gradients_are_those_of_one_pass(name, loss, pairs):
    settings = without_dropout(name)
    model, batch = make_model(name, **settings).double().train(), make_batch(pairs, dtype=torch.float64)
    made = LOSSES[loss]()
    require_two_pass(model, made)
    pulled = assert_the_same_step(model, batch, made, None)
    assert pulled or (pairs == 2 and loss.startswith("shn")), "of two pairs none may be semi-hard"
    if pairs == 7:
        assert assert_the_same_step(model, batch, made, torch.tensor([5, 5, 9, 1, 1, 1, 3]))


@pytest.mark.filterwarnings("ignore::selhn.base.errors.SelhnWarning")
@pytest.mark.parametrize("loss", LOSSES)
def test_ties_go_to_the_same_pair(loss):
    # Images and texts that are there twice tie in every row and column.
    model, batch = make_model("scan_t2i_avg").double().train(), make_batch(6, dtype=torch.float64)
    again = torch.tensor([0, 1, 1, 3, 0, 3])
    batch = batch.each(lambda tensor: tensor[again])
    made = LOSSES[loss]()
    assert assert_the_same_step(model, batch, made, None)
    assert assert_the_same_step(model, batch, made, torch.tensor([0, 1, 1, 3, 0, 3]))
    assert not assert_the_same_step(model, batch, made, torch.zeros(6, dtype=torch.long)), "no negatives"


@pytest.mark.parametrize("name", ELIGIBLE)
def test_nothing_waits_for_the_device(name, monkeypatch):
    # A fake tensor has no values: whatever asks for one, or for a shape that depends on one, raises.
    monkeypatch.setattr("selhn.ops.fragments.RAGGED_DEVICES", ())
    batch = make_batch()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = create_model(name, **CASES[name]).train()
        fake = batch.each(torch.empty_like)
        match_in_two_passes(model, fake, TripletSHN(), fake.image_ids).scores.sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_two_that_are_each_others_hardest_count_once():
    scores = torch.tensor([[0.5, 0.9, 0.1], [0.2, 0.4, 0.3], [0.1, 0.2, 0.6]])
    pairs = pulled_pairs(scores, None, ("hardest",))
    positives, of_images, of_texts = [0, 4, 8], [1, 5, 7], [3, 1, 5]
    assert pairs.tolist() == sorted(positives + of_images + of_texts)
    assert len(pulled_pairs(scores, None, ("hardest", "hardest_below"))) == 3 + 2 * 2 * 3


def test_the_same_value_to_the_last_bit_in_float32():
    # Near a collapse scores differ in their last bits: rounding in the second pass must not move a maximum.
    model, batch = make_model("scan_t2i_avg").train(), make_batch(7)
    with torch.no_grad():
        model.image.fc.weight.mul_(1e-4)
        model.image.fc.bias.fill_(1.0)
    one, two = model(batch), match_in_two_passes(model, batch, TripletHN(), None)
    assert one.scores.std(0).max() < 1e-4
    assert torch.equal(one.scores, two.scores)
    value, got = gradients(model, two, TripletHN(), None)
    expected = gradients(model, one, TripletHN(), None)[1]
    for key, grad in expected.items():
        torch.testing.assert_close(got[key], grad, rtol=1e-3, atol=1e-5, msg=key)


def test_weights_rounded_by_autocast_have_gradients():
    model, batch = make_model("sgr", dropout=0.0).train(), make_batch(6)
    with torch.autocast("cpu", torch.bfloat16):
        match = match_in_two_passes(model, batch, TripletHN(), None)
    TripletHN()(match.scores).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.head.local.parameters())
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_half_precision_in_the_encoders_only():
    model, batch = make_model("scan_t2i_avg").train(), make_batch(6)
    with torch.autocast("cpu", torch.bfloat16):
        one, two = model(batch), match_in_two_passes(model, batch, TripletHN(), None)
    assert two.scores.dtype == torch.float32
    assert torch.equal(two.scores, one.scores)
    expected, got = (gradients(model, match, TripletHN(), None)[1] for match in (one, two))
    # Gradients are rounded to bfloat16 on their way into the encoders.
    for key, grad in expected.items():
        torch.testing.assert_close(got[key], grad, rtol=0.05, atol=0.02 * grad.abs().max().item(), msg=key)


@pytest.mark.parametrize("loss", [TripletSelHN, Triplet, InfoNCE, SigLIP])
def test_a_loss_that_pulls_at_all_negatives_is_refused(loss):
    with pytest.raises(SelhnError):
        require_two_pass(make_model("scan_t2i_avg"), loss())


def test_what_else_is_refused():
    with pytest.raises(SelhnError, match="batch norm"):
        require_two_pass(make_model("saf"), TripletHN())
    with pytest.raises(SelhnError, match="rvse"):
        require_two_pass(make_model("rvse"), TripletHN())
    with pytest.raises(SelhnError, match="outside"):
        require_two_pass(make_model("sgr"), lambda scores: scores.sum())


def test_warming_up_takes_one_pass(monkeypatch, tiny_model, tiny_data):
    model, loss = tiny_model("scan_t2i_avg").train(), TripletWarmUp(warmup_epochs=1)
    config = TrainConfig(batch_size=6, device="cpu", two_pass=True)
    batches = make_batches(model, tiny_data, config, torch.device("cpu"))
    protocol, step = Protocol(model, loss, tiny_data, batches, config), next(batches.steps(0))
    require_two_pass(model, loss)
    asked = []
    logits = type(model).logits

    def counted(self, images, texts, aligned=False):
        if aligned:
            asked.append(len(images))
        return logits(self, images, texts, aligned)

    monkeypatch.setattr(type(model), "logits", counted)
    for epoch in (0, 1):
        assert not asked
        loss.set_epoch(epoch)
        protocol.match(step.pairs, batches.assemble_seeded(step.pairs, step.num_tokens))
    assert asked == [6 + 2 * 6]


def test_a_step_of_the_loop_is_the_same(tiny_model, tiny_data):
    ends = []
    for two_pass in (False, True):
        # In double precision: BFAN drops what is below the mean, and rounding may decide what that is.
        model = tiny_model("bfan_equal").double().train()
        optimizer = AdamW([{"params": list(model.parameters())}], 1e-4, 0.0, torch.device("cpu"))
        config = TrainConfig(batch_size=6, device="cpu", two_pass=two_pass)
        batches = make_batches(model, tiny_data, config, torch.device("cpu"))
        batches.dtype = torch.float64
        protocol, numbers = Protocol(model, TripletHN(), tiny_data, batches, config), []
        for step, _ in zip(batches.steps(0), range(3)):
            batches.generator.manual_seed(step.seed)
            numbers.append(training_step(protocol, optimizer, step.pairs, step.num_tokens))
        ends.append((numbers, model.state_dict()))
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-6, atol=1e-8)


def test_a_run_in_two_passes(tmp_path, tiny_model, tiny_data, tiny_config):
    logs = []
    for two_pass in (False, True):
        out = tmp_path / str(two_pass)
        settings = {"config": tiny_config, "epochs": 1, "two_pass": two_pass, "quiet": True}
        train(tiny_model("scan_t2i_avg"), tiny_data, TripletHN(), out=out, **settings)
        logs.append([row for row in read_log(out / "log.jsonl") if "loss" in row])
    for one, two in zip(*logs, strict=True):
        assert one.keys() == two.keys()
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-3)
    with pytest.raises(SelhnError):
        train(
            tiny_model("scan_t2i_avg"),
            tiny_data,
            TripletSelHN(),
            config=tiny_config,
            two_pass=True,
            quiet=True,
        )
