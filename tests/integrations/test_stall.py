"""T-HN stalls in the loops of other libraries and the callback says so within 300 steps; SelHN learns, in silence."""

from importlib import import_module

import pytest
import torch
from torch.nn.functional import normalize

from integrations import stall_runs
from integrations.cases import Towers, found_first, gradients, pairs, plain_gradients, same
from integrations.stall_runs import BATCH, HELD_OUT, RATE, STEPS
from selhn.base.errors import SelhnError
from selhn.diagnose import Watch
from selhn.losses import TripletHN, TripletSelHN, create_loss

pytestmark = pytest.mark.filterwarnings("ignore")


class Tracker:
    def __init__(self):
        self.alerts = []

    def alert(self, title, text):
        self.alerts.append((title, text))


def judge(loss, model, watch, tracker=None):
    """The assertions of both halves."""
    if loss == "hn":
        ((step, said),) = watch.said.items()
        assert 250 <= step <= 300
        assert said.startswith("Training has stalled")
        assert "selhn" in said
        assert watch.verdict().kind == "stalled"
        assert found_first(model, HELD_OUT) < 0.1
        assert tracker is None or tracker.alerts == [("Training has stalled", said)]
    else:
        assert not watch.said
        assert watch.verdict().kind == "healthy"
        assert found_first(model, HELD_OUT) > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hn", "selhn"])
def test_a_plain_loop(loss):
    model, data, tracker = Towers(), pairs(), Tracker()
    loss_fn, watch = create_loss(loss), Watch(loss, trackers=[tracker], steps_per_epoch=len(data[0]) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        chosen = torch.randperm(len(data[0]), generator=generator)[:BATCH]
        images, texts = (normalize(one, dim=1) for one in model(*(one[chosen] for one in data)).values())
        scores = images @ texts.T
        value = loss_fn(scores)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        watch(scores, value)
    judge(loss, model, watch, tracker)


@pytest.mark.parametrize("loss", ["hn", "selhn"])
def test_transformers(loss, library, tmp_path):
    library("transformers", "accelerate")
    tracker = Tracker()
    trainer, callback = stall_runs.trainer(loss, tmp_path, trackers=[tracker])
    model, batch = (
        trainer.model,
        dict(zip(("images", "texts"), pairs(16))) | {"image_ids": torch.arange(16) // 2},
    )
    expected = plain_gradients(model, create_loss(loss), batch["images"], batch["texts"], batch["image_ids"])
    model.zero_grad()
    trainer.compute_loss(model, dict(batch)).backward()
    same(gradients(model), expected)
    model.zero_grad()
    trainer.train()
    judge(loss, model, callback.watch, tracker)
    assert trainer.pair_loss.watch is None


def test_transformers_with_a_loss_from_elsewhere(library, tmp_path):
    transformers = library("transformers", "accelerate")
    ours = import_module("selhn.integrations.transformers")

    class Theirs(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **_):
            inputs.pop("image_ids")
            images, texts = (normalize(one, dim=1) for one in model(**inputs).values())
            scores = images @ texts.T
            hardest = scores - 2 * torch.eye(len(scores))
            return (0.2 - scores.diagonal() + torch.stack([hardest.amax(0), hardest.amax(1)])).relu().sum()

    callback = ours.StallCallback()
    settings = stall_runs.arguments(tmp_path)
    Theirs(Towers(), settings, train_dataset=stall_runs.rows(), callbacks=[callback]).train()
    assert [said.split(":")[0] for said in callback.watch.said.values()] == ["Training has stalled"]


def test_the_collator_and_clip(library):
    transformers = library("transformers", "accelerate")
    ours = import_module("selhn.integrations.transformers")

    def processor(text, images, **settings):
        assert settings == {"return_tensors": "pt", "padding": True, "truncation": True}
        return {"input_ids": torch.stack(text), "pixel_values": torch.stack(images)}

    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {**tower, "vocab_size": 32, "max_position_embeddings": 6, "bos_token_id": 0, "eos_token_id": 31}
    vision = {**tower, "image_size": 16, "patch_size": 8}
    model = transformers.CLIPModel(
        transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    )
    data = [
        {"image": torch.randn(3, 16, 16), "text": torch.randint(1, 31, (6,)), "image_id": number // 2}
        for number in range(8)
    ]
    batch = ours.PairCollator(processor)(data)
    assert batch["image_ids"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]

    class MyTrainer(ours.PairTrainerMixin, transformers.Trainer):
        pass

    settings = transformers.TrainingArguments(use_cpu=True, report_to="none", remove_unused_columns=False)
    trainer = MyTrainer(model, settings, data_collator=ours.PairCollator(processor))
    value, outputs = trainer.compute_loss(model, dict(batch), return_outputs=True)
    scores = outputs.image_embeds @ outputs.text_embeds.T
    torch.testing.assert_close(value, TripletSelHN()(scores, batch["image_ids"]))
    assert trainer.evaluate(data)["eval_loss"] == pytest.approx(float(value))


@pytest.mark.parametrize("loss", ["hn", "selhn"])
def test_lightning(loss, library):
    library("lightning.pytorch")
    module, batch = stall_runs.module(loss), pairs(16)
    expected = plain_gradients(module.towers, create_loss(loss), *batch)
    module.towers.zero_grad()
    module.pair_loss(*module.encode(batch)).backward()
    same(gradients(module.towers), expected)
    judge(loss, *stall_runs.in_lightning(loss))


def test_outputs_without_scores_are_an_error_and_not_silence():
    from selhn.integrations.pairs import Listener

    listener = Listener()
    listener.start(Towers(), 0)
    with pytest.raises(SelhnError):
        listener.hear({"loss": torch.tensor(1.0)})
    listener.hear({"loss": torch.tensor(1.0), "scores": torch.rand(4, 4)})
    assert listener.watch.rows[0]["loss"] == 1.0


def test_a_watch_without_the_name_of_the_loss():
    watch, scores = Watch(), torch.full((4, 4), 0.5)
    for _ in range(300):
        watch(scores, TripletHN()(scores) if watch.step % 10 == 0 else None)
    assert len(watch.said) == 1
    assert watch.verdict().kind == "stalled"
    with pytest.raises(SelhnError):
        Watch(every=0)
