"""Calls that people get wrong: each is refused in a sentence that says what to pass instead."""

import re

import jaxtyping
import pytest
import torch
from beartype.roar import BeartypeCallHintParamViolation, BeartypeCallHintReturnViolation
from PIL import Image

import selhn
from selhn.base.errors import SelhnError, SelhnWarning
from selhn.data import register_format
from selhn.diagnose import Probe, Watch
from selhn.eval import encode_split, measure_split, score_split
from selhn.export import calibrate, export_towers, towers_of
from selhn.losses import TripletSelHN
from selhn.models import matcher
from selhn.search import Item
from selhn.text import Vocabulary
from selhn.training import TrainConfig
from selhn.training.optim import make_optimizer

pytestmark = pytest.mark.usefixtures("as_a_user")


@pytest.fixture(scope="module")
def data():
    return selhn.load_data("world", images=100, width=16)


@pytest.fixture(scope="module")
def model(data):
    return selhn.create_model(
        "rvse", tokenizer=Vocabulary.build(data.train.captions), feature_dim=16, dim=8, word_dim=8
    )


@pytest.fixture
def while_tests_run(as_a_user):
    jaxtyping.config.update("jaxtyping_disable", False)


def test_types_and_axes_are_checked_while_tests_run(model, while_tests_run, monkeypatch):
    with pytest.raises(BeartypeCallHintParamViolation):
        model.score(torch.rand(2, 4), torch.rand(3, 5))  # "I d" and "T d"
    with pytest.raises(BeartypeCallHintParamViolation):
        selhn.list_losses(3)
    monkeypatch.setattr(matcher, "dot_scores", lambda images, texts: texts[0])
    with pytest.raises(BeartypeCallHintReturnViolation):
        model.score(torch.rand(2, 4), torch.rand(3, 4))  # "I T"


def train(model, data, loss):
    selhn.train(model, data, loss, epochs=1, batch_size=16, quiet=True)


GREY = Image.new("L", (4, 4))

CALLS = {
    "train, swapped": (lambda m, d: selhn.train(d, m, TripletSelHN()), "model must be .*got Data: .*train(model, data"),
    "train, a name for a model": (lambda m, d: selhn.train("rvse", d, TripletSelHN()), "got 'rvse': .*create_model"),
    "train, a split": (lambda m, d: selhn.train(m, d.train, TripletSelHN()), "data must be .*got Split: .*load_data"),
    "train, a name for a loss": (lambda m, d: selhn.train(m, d, "selhn"), 'an object such as create_loss("selhn")'),
    "train, a list for a loss": (lambda m, d: selhn.train(m, d, ["selhn"]), "give an object such as TripletSelHN()"),
    "train, a loss per image": (lambda m, d: train(m, d, lambda scores: scores.mean(1)), "one number.* shape (16,)"),
    "train, a loss of no scores": (lambda m, d: train(m, d, lambda scores: torch.tensor(1.0)), "got tensor(1.)"),
    "train, a loss that returns nothing": (lambda m, d: train(m, d, lambda scores: None), "got None: return a 0-d"),
    "evaluate, all splits": (lambda m, d: selhn.evaluate(m, d), "split must be .*got Data: .*data.test"),
    "evaluate, swapped": (lambda m, d: selhn.evaluate(d.test, m), "model must be .*got Split: the model comes first"),
    "Index.build, a model": (
        lambda m, d: selhn.Index.build(m, []),
        "not an object of class VSE: for a model, Index.build(towers_of(model), ...)",
    ),
    "open_towers, a model": (lambda m, d: selhn.open_towers(m), "path must be a name .*got VSE: .*towers_of(model)"),
    "open_towers, a wrong path": (lambda m, d: selhn.open_towers("nowhere"), "nowhere does not exist: name a towers"),
    "embed_pictures, a path": (lambda m, d: towers_of(m).embed_pictures(["dog.jpg"]), "got 'dog.jpg': open a file"),
    "embed_pictures, one": (lambda m, d: towers_of(m).embed_pictures(GREY), "for one picture, give [picture]"),
    "embed_pictures, grey": (lambda m, d: towers_of(m).embed_pictures([GREY]), "the mode L: give picture.convert"),
    "calibrate, towers": (lambda m, d: calibrate(towers_of(m), d), "model must be .*got MatcherTowers: .*load_model"),
    "export_towers, a run": (lambda m, d: export_towers("runs/rvse", "out"), "got 'runs/rvse': .*load_model"),
    "Index.build, names": (
        lambda m, d: selhn.Index.build(towers_of(m), ["dog.jpg"]),
        "an item must be .*'dog.jpg': give Item(",
    ),
    "Index.build, lists": (
        lambda m, d: selhn.Index.build(towers_of(m), [Item("dog.jpg", [[0.5] * 16])]),
        "must be tensors or arrays, got list: use torch.as_tensor or np.asarray",
    ),
    "Index.get, a number": (
        lambda m, d: selhn.Index.build(towers_of(m), []).get(3),
        "there is no item '3' in the index",
    ),
    "score_split, swapped": (lambda m, d: score_split(d.test, m), "model must be .*got Split"),
    "encode_split, all splits": (lambda m, d: encode_split(m, d), "split must be .*got Data"),
    "measure_split, all splits": (lambda m, d: measure_split(torch.zeros(2, 2), d), "split must be .*got Data"),
    "a probe of a path": (lambda m, d: Probe("probe.jsonl"), "model must be .*got 'probe.jsonl': .*Probe(model"),
    "a watch of a loss of torch": (lambda m, d: Watch(torch.nn.MSELoss()), "loss must be .*got MSELoss: leave it out"),
    "a watch of a list": (lambda m, d: Watch()([[0.3]]), "scores must be a torch tensor, got list"),
    "a watch, too few ids": (lambda m, d: Watch()(torch.rand(3, 3), image_ids=[1, 2]), "must have shape (3,)"),
    "a probe of the loss": (lambda m, d: Probe(m)(torch.tensor(0.3)), "scores must be square"),
    "a format without its test": (lambda m, d: register_format("mine", print, None), "takes a name and two functions"),
    "a vocabulary of one text": (lambda m, d: Vocabulary.build("a dog"), "there are no captions: give a list"),
    "a vocabulary of nothing": (lambda m, d: Vocabulary.build([]), "there are no captions"),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_says_what_to_pass(call, model, data):
    wrong, message = CALLS[call]
    with pytest.raises(SelhnError, match=".*".join(map(re.escape, message.split(".*")))):
        wrong(model, data)


def test_a_probe_makes_the_folder_of_its_log(model, tmp_path):
    probe = Probe(model, tmp_path / "new" / "probe.jsonl")
    probe(torch.eye(4))
    assert (tmp_path / "new" / "probe.jsonl").read_text().count("\n") == 1


def test_a_rate_that_is_never_right(model):
    with pytest.warns(SelhnWarning, match="lr=1e.09: AdamW"):
        make_optimizer(model, TrainConfig(lr=1e9), torch.device("cpu"))
