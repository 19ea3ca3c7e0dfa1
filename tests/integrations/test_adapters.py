"""Each adapter against the real library: the gradients of the plain loop, and a few steps of training."""

import inspect
from importlib import import_module

import pytest
import torch

from integrations.cases import Towers, gradients, pairs, plain_gradients, same, sentences, small_clip
from selhn.base.errors import MissingExtra, SelhnError, needs
from selhn.integrations import PairLoss
from selhn.losses import TripletSelHN, create_loss

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries
IDS = torch.arange(16) // 2


def adapter(name):
    return import_module(f"selhn.integrations.{name}")


@pytest.mark.parametrize("loss", ["selhn", "hn", "infonce", "siglip"])
def test_the_core_is_the_plain_loop(loss):
    model, (images, texts) = Towers(), pairs(16)
    expected = plain_gradients(model, create_loss(loss), images, texts, IDS)
    model.zero_grad()
    PairLoss(loss)(*model(images, texts).values(), IDS).backward()
    same(gradients(model), expected)


@pytest.mark.parametrize("loss", ["warmup", "ncr", "aoq", "meta_spn", TripletSelHN(reduction="none")])
def test_what_the_core_refuses(loss):
    with pytest.raises(SelhnError):
        PairLoss(loss)


def test_a_missing_library_is_named():
    with pytest.raises(MissingExtra), needs("no-such-library"):
        import no_such_library  # noqa: F401


def test_a_learnt_temperature_must_be_in_the_optimiser():
    model, loss = Towers(), PairLoss(create_loss("infonce", learn=True))
    with pytest.raises(SelhnError):
        loss.require_trained(model.parameters())
    model.pair_loss = loss
    loss.require_trained(model.parameters())


def test_open_clip(library):
    open_clip = library("open_clip")
    ours, theirs = adapter("open_clip").ClipPairLoss, open_clip.loss.ClipLoss
    asked = [one for one in inspect.signature(ours).parameters if one != "loss"]
    assert asked == list(inspect.signature(theirs).parameters)
    assert list(inspect.signature(ours.forward).parameters) == list(
        inspect.signature(theirs.forward).parameters
    )
    model, batch = small_clip(8)
    optimizer, loss_fn, values = torch.optim.AdamW(model.parameters(), lr=1e-2), ours(loss="infonce"), []
    outputs = model(*batch)
    create_loss("infonce")(outputs["image_features"] @ outputs["text_features"].T).backward()
    expected = gradients(model)
    for step in range(10):
        optimizer.zero_grad()
        losses = loss_fn(**model(*batch), output_dict=True)
        sum(losses.values()).backward()
        if step == 0:
            found = gradients(model)
            assert not found.pop("logit_scale"), "a gradient of 0, so that no parameter is unused"
            same(found, expected)
        optimizer.step()
        values.append(float(losses["contrastive_loss"]))
    assert values[-1] < 0.7 * values[0]
    for wrong in ({"use_horovod": True}, {"world_size": 2}):
        with pytest.raises(SelhnError):
            ours(**wrong)(**model(*batch))


def test_pytorch_metric_learning(library):
    library("pytorch_metric_learning")
    model, (images, texts) = Towers(), pairs(16)
    expected = plain_gradients(model, TripletSelHN(), images, texts, IDS)
    loss_fn, values = adapter("pytorch_metric_learning").MetricPairLoss("selhn"), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(60):
        optimizer.zero_grad()
        outputs = model(images, texts)
        value = loss_fn(outputs["image_embeds"], IDS, ref_emb=outputs["text_embeds"], ref_labels=IDS)
        value.backward()
        if step == 0:
            same(gradients(model), expected)
        optimizer.step()
        values.append(float(value))
    assert values[-1] < 0.7 * values[0]
    emb = torch.randn(4, 3)
    for wrong in (
        {"labels": IDS[:4]},
        {"labels": IDS[:4], "ref_emb": emb + 1, "ref_labels": IDS[:4] + 1},
        {"labels": IDS[:4], "ref_emb": emb + 1, "ref_labels": IDS[:4], "indices_tuple": (IDS, IDS, IDS)},
    ):
        with pytest.raises(SelhnError):
            loss_fn(emb, **wrong)


def test_accelerate(library):
    accelerate = library("accelerate")
    model, (images, texts) = Towers(), pairs(16)
    expected = plain_gradients(model, create_loss("infonce"), images, texts, IDS)
    model.zero_grad()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    prepared, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    loss_fn, values = adapter("accelerate").pair_loss(accelerator, prepared, "infonce"), []
    for step in range(60):
        with accelerator.accumulate(prepared):
            value = loss_fn(*prepared(images, texts).values(), IDS)
            accelerator.backward(value)
            if step == 1:
                same(gradients(model), expected)  # the mean of two equal batches
            optimizer.step()
            optimizer.zero_grad()
        values.append(float(value))
    assert values[-1] < 0.7 * values[0]
    assert loss_fn.watch.step == 60


def test_sentence_transformers(library, tmp_path):
    models, datasets = library("sentence_transformers"), library("datasets")
    model, rows = sentences(12)
    features = [model.tokenize(texts) for texts in rows]

    def plain():
        anchors, positives = (
            torch.nn.functional.normalize(model(dict(one))["sentence_embedding"], dim=1) for one in features
        )
        return TripletSelHN()(anchors @ positives.T)

    make = adapter("sentence_transformers").SentencePairLoss
    model.zero_grad()
    plain().backward()
    expected = gradients(model)
    for loss in (make(model), make(model, mini_batch_size=5)):
        model.zero_grad()
        loss([dict(one) for one in features]).backward()
        same(gradients(model), expected)
        assert loss.get_config_dict()["loss"] == "TripletSelHN"
    with pytest.raises(SelhnError):
        make(model)([features[0]] * 3)
    before = float(plain())
    settings = models.SentenceTransformerTrainingArguments(
        str(tmp_path), max_steps=30, per_device_train_batch_size=12, learning_rate=0.05, report_to="none", use_cpu=True,
        save_strategy="no",
    )  # fmt: skip
    pairs = datasets.Dataset.from_dict({"anchor": rows[0], "positive": rows[1]})
    models.SentenceTransformerTrainer(model, settings, train_dataset=pairs, loss=make(model)).train()
    assert float(plain()) < 0.8 * before


def test_where_losses_of_sentence_transformers_are_stuck(library):
    """The numbers of docs/integrations/stuck.md that are theirs: of equal embeddings, with their default settings."""
    losses = library("sentence_transformers.losses")

    class Collapsed(torch.nn.Module):
        def forward(self, features):
            return {"sentence_embedding": torch.ones(32, 4)}

    model, columns = Collapsed(), [{}, {}]
    assert float(losses.MultipleNegativesRankingLoss(model)(columns, None)) == pytest.approx(3.466, abs=1e-3)
    assert float(losses.TripletLoss(model)([{}, {}, {}], None)) == pytest.approx(5, abs=1e-3)
    assert float(losses.BatchHardTripletLoss(model)([{}], torch.arange(32) // 2)) == pytest.approx(
        5, abs=1e-3
    )
