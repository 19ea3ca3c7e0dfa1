import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.data import Pairs, PlannedStep, load_data
from selhn.losses import AOQ, NCR, MetaSPN, TripletHN, TripletSelHN, TripletWarmUp
from selhn.models import create_model
from selhn.runs import read_log
from selhn.text import Vocabulary
from selhn.training import capture
from selhn.training import state as states
from selhn.training.average import WeightAverage
from selhn.training.capture import Stepper, recording_stream
from selhn.training.config import TrainConfig
from selhn.training.loop import train
from selhn.training.optim import make_optimizer
from selhn.training.protocols import Protocol
from selhn.training.step import make_batches, make_stepper


def test_without_recording_every_step_is_computed_with_its_own_seed():
    generator = torch.Generator()
    pairs = Pairs(torch.arange(3), torch.arange(3))

    def compute(pairs, num_tokens):
        return {"tokens": torch.tensor(num_tokens), "draw": torch.rand((), generator=generator)}

    stepper = Stepper(compute, generator, record=False)
    first, second, again = (stepper(PlannedStep(pairs, 7, seed)) for seed in (1, 2, 1))
    assert first.names == ("tokens", "draw")
    assert first.values[0] == 7
    assert torch.equal(first.values, again.values)
    assert not torch.equal(first.values, second.values)


def test_recording_needs_a_gpu(tiny_model, tiny_data):
    config = TrainConfig(batch_size=64, device="cpu", capture="always")
    model = tiny_model()
    batches = make_batches(model, tiny_data, config, torch.device("cpu"))
    optimizer = make_optimizer(model, config, torch.device("cpu"))
    protocol = Protocol(model, TripletHN(), tiny_data, batches, config)
    with pytest.raises(SelhnError):
        make_stepper(protocol, optimizer)


def run(tmp_path, capture, loss, model="rvse", networks=1, **settings):
    data = load_data("world", images=600)
    vocabulary = Vocabulary.build(data.train.captions)
    torch.manual_seed(0)
    sizes = {"feature_dim": data.feature_dim, "dim": 64, "word_dim": 20}
    if model == "saf":
        sizes |= {"sim_dim": 32, "num_regions": 12}
    made = create_model(model, networks=networks, tokenizer=vocabulary, **sizes)
    out = tmp_path / f"{capture}-{len(list(tmp_path.iterdir()))}"
    done = train(made, data, loss, out=out, epochs=3, capture=capture, device="cuda", quiet=True, **settings)
    rows = [row for row in read_log(out / "log.jsonl") if "loss" in row]
    return done, torch.tensor([row["loss"] for row in rows])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["rvse", "vse_fc"])
def test_a_recorded_run_is_the_run(tmp_path, precision, model):
    (_, plain), (_, recorded) = (
        run(tmp_path, capture, TripletSelHN(), model, precision=precision) for capture in ("never", "always")
    )
    assert len(plain) == len(recorded) == 3 * (3000 // 128)
    # Sums of gradients come in any order on a GPU, so the two drift apart as two runs of either do.
    assert torch.allclose(plain[:20], recorded[:20], rtol=1e-3 if precision == "float32" else 2e-2)
    assert torch.allclose(plain[-20:].mean(), recorded[-20:].mean(), rtol=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("networks", [1, 2])
@pytest.mark.parametrize(
    ("loss", "settings"), [(NCR, {"warmup_epochs": 1}), (AOQ, {"depth": 50}), (MetaSPN, {})]
)
def test_a_protocol_is_recorded_with_the_step(tmp_path, loss, settings, networks):
    if loss is not NCR and networks == 2:
        pytest.skip("only ncr trains two networks")
    (_, plain), (_, recorded) = (
        run(tmp_path, capture, loss(**settings), networks=networks, precision="float32")
        for capture in ("never", "always")
    )
    assert torch.allclose(plain[:20], recorded[:20], rtol=1e-3)
    assert torch.allclose(plain[-20:].mean(), recorded[-20:].mean(), rtol=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("loss", [MetaSPN, AOQ])
def test_a_protocol_whose_features_are_elsewhere_is_not_recorded(tmp_path, loss):
    done, losses = run(tmp_path, "auto", loss(), feature_bytes=1)
    assert losses.isfinite().all()
    assert done.test.rsum > 0


@pytest.mark.gpu
def test_the_rate_and_the_phase_of_the_loss_change_in_a_recorded_run(tmp_path):
    settings = {"lr": 2e-3, "decay_at": (1, 2), "decay_by": 1e-9, "precision": "float32"}
    _, losses = run(tmp_path, "always", TripletWarmUp(warmup_epochs=2), **settings)
    per_epoch = losses.view(3, -1)
    assert per_epoch[0, -3:].mean() < 0.95 * per_epoch[0, :3].mean()
    # With a rate of next to nothing, nothing moves any more; with the hardest negative only, the loss is far smaller.
    assert per_epoch[1].std() < 0.1 * per_epoch[1].mean()
    assert per_epoch[2].max() < 0.5 * per_epoch[1].min()


@pytest.mark.gpu
def test_features_that_do_not_fit_are_brought_over(tmp_path):
    (_, inside), (_, outside) = (
        run(tmp_path, "always", TripletHN(), feature_bytes=budget, precision="float32") for budget in (0, 1)
    )
    assert torch.allclose(inside[:20], outside[:20], rtol=1e-3)


@pytest.mark.gpu
def test_a_recorded_run_resumes(tmp_path):
    data = load_data("world", images=600)
    vocabulary = Vocabulary.build(data.train.captions)

    def go(out, epochs, resume):
        torch.manual_seed(0)
        model = create_model("rvse", tokenizer=vocabulary, feature_dim=data.feature_dim, dim=64, word_dim=20)
        settings = {
            "epochs": epochs,
            "device": "cuda",
            "decay_at": (1,),
            "quiet": True,
            "precision": "float32",
        }
        train(model, data, TripletSelHN(), out=out, resume=resume, **settings)
        return torch.tensor([row["loss"] for row in read_log(out / "log.jsonl") if "loss" in row])

    whole = go(tmp_path / "whole", 2, False)
    go(tmp_path / "cut", 1, False)
    assert torch.allclose(go(tmp_path / "cut", 2, True), whole, rtol=0.02)


@pytest.mark.gpu
def test_the_average_follows_the_weights_that_a_recording_updates(tmp_path, monkeypatch):
    followed = {}

    class Watched(WeightAverage):
        """The same average, computed on the host from copies of the weights."""

        def update(self, step):
            weights = {
                name: weight.detach().double().cpu() for name, weight in self.source.named_parameters()
            }
            decay = min(0.95, step / (9 + step))
            for name in weights.keys() & self.state_dict().keys():
                followed[name] = decay * followed[name] + (1 - decay) * weights[name]
            super().update(step)

        def __init__(self, model, decay):
            super().__init__(model, decay)
            self.source = model
            followed.update(
                {name: weight.detach().double().cpu() for name, weight in model.named_parameters()}
            )
            averages.append(self)

    averages = []
    monkeypatch.setattr(states, "WeightAverage", Watched)
    monkeypatch.setattr("selhn.training.average.EVERY_STEP_UNTIL", 10_000)
    run(tmp_path, "always", TripletSelHN(), ema=0.95, precision="float32")
    (average,) = averages
    moved = 0
    for name, tensor in average.state_dict().items():
        if name in followed:
            torch.testing.assert_close(tensor.double().cpu(), followed[name], rtol=1e-4, atol=1e-5)
            moved += 1
    assert moved == sum(weight.requires_grad for weight in average.source.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("model", "networks"), [("rvse", 1), ("rvse", 2), ("saf", 1)])
def test_the_teacher_is_recorded_with_the_step(tmp_path, precision, model, networks):
    settings = {"networks": networks, "precision": precision, "ema": 0.9, "distil": 1.0}
    plain, recorded = (
        run(tmp_path, how, TripletSelHN(), model, **settings)[1] for how in ("never", "always")
    )
    assert torch.allclose(plain[:20], recorded[:20], rtol=1e-3 if precision == "float32" else 2e-2)
    assert torch.allclose(plain[-20:].mean(), recorded[-20:].mean(), rtol=0.1)
    taught = [
        [row["aux_distillation"] for row in read_log(path) if "loss" in row]
        for path in tmp_path.rglob("log.jsonl")
    ]
    assert all(sum(row[10:20]) > 0 for row in taught)
    first, second = (torch.tensor(row) for row in taught)
    assert torch.allclose(first[5:20].mean(), second[5:20].mean(), rtol=0.1)


@pytest.mark.gpu
def test_the_rate_changes_within_an_epoch_of_a_recorded_run(tmp_path):
    settings = {"schedule": "cosine", "lr_warmup": 1.0, "lr": 2e-3, "precision": "float32"}
    plain, recorded = (run(tmp_path, how, TripletSelHN(), **settings)[1] for how in ("never", "always"))
    assert torch.allclose(plain[:20], recorded[:20], rtol=1e-3)


@pytest.mark.gpu
def test_a_step_that_cannot_be_recorded_is_named():
    def looks_at_its_numbers(pairs, num_tokens):
        total = pairs.texts.sum()
        return {"total": total + 1 if total.item() > 0 else total}

    with recording_stream(torch.device("cuda")):
        stepper = Stepper(looks_at_its_numbers, torch.Generator("cuda"), record=True)
        step = PlannedStep(Pairs(torch.arange(3).cuda(), torch.arange(3).cuda()), 7, 0)
        stepper(step)
        with pytest.raises(ValueError, match="could not be recorded .* capture=never"):
            stepper(step)
    assert torch.randn(3, device="cuda").isfinite().all(), "the next run, with capture=never, draws too"


def test_a_recording_without_memory_is_not_blamed_on_the_loss(monkeypatch):
    def recording(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(capture, "_Recording", recording)
    monkeypatch.setattr(capture, "_end_recording", lambda generator: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "default_generators", [None])
    stepper = Stepper(lambda pairs, tokens: {"loss": torch.tensor(1.0)}, torch.Generator(), record=True)
    step = PlannedStep(Pairs(torch.arange(3), torch.arange(3)), 7, 0)
    stepper(step)
    with pytest.raises(SelhnError, match="memory") as refused:
        stepper(step)
    assert "reads its values" not in str(refused.value)
