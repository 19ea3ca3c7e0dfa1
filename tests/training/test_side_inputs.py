"""A model that declares side inputs is trained, measured and used; where they are missing, it is said plainly."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import selhn
from selhn.base.errors import SelhnError
from selhn.data import Batches, Data
from selhn.eval import PairScorer, evaluate, score_split
from selhn.eval.encoded import encode_split
from selhn.export import towers_of
from selhn.losses import AOQ, TripletSelHN
from selhn.models import AbstractMatcher, Twins, create_model
from selhn.models.matcher import taken_side
from selhn.ops import unit
from selhn.search import Index
from selhn.training.config import TrainConfig
from selhn.training.step import make_batches


class Sided(AbstractMatcher):
    """Images by their boxes and neighbours alone, texts by their concepts, and by parses if there are any."""

    is_embedding = True
    side = {"boxes": True, "adjacency": True, "concepts": True, "dependencies": False}

    def __init__(self, tokenizer, dim=8):
        super().__init__(tokenizer)
        self.fc, self.words = nn.Linear(5, dim), nn.Linear(3, dim)
        self.parses = []

    def encode_images(self, regions, region_mask=None, *, boxes, adjacency):
        assert len(boxes) == len(adjacency) == len(regions)
        return unit(self.fc(torch.cat([boxes, adjacency.sum(2, keepdim=True)], 2)).tanh().sum(1))

    def encode_texts(self, tokens, token_mask=None, *, concepts, dependencies=None):
        self.parses.append(None if dependencies is None else len(dependencies) == len(tokens))
        return unit(self.words(concepts))

    def score(self, images, texts):
        return images @ texts.T


@pytest.fixture(scope="module")
def data(tiny_data):
    def sided(split):
        split = split.first(16)
        concepts = torch.stack(
            [split.image_of_text / split.num_images, torch.arange(split.num_texts) % 7.0], 1
        )
        parses = torch.zeros(split.num_texts, 2, 2, dtype=torch.int32)
        return replace(split, given_side={"concepts": torch.cat([concepts, concepts[:, :1] ** 2], 1),
                                          "dependencies": parses})  # fmt: skip

    return Data("sided", sided(tiny_data.train), sided(tiny_data.dev), sided(tiny_data.test))


@pytest.fixture
def model(data, tiny_model):
    torch.manual_seed(0)
    return Sided(tiny_model().tokenizer)


def test_a_batch_carries_the_rows_of_its_pairs(model, data):
    batches = make_batches(
        model, data, TrainConfig(batch_size=16, device="cpu", corrupt_words=0), torch.device("cpu")
    )
    step = next(iter(batches.steps(0)))
    batch, split = batches.assemble(step), data.train
    assert sorted(batch.side) == ["adjacency", "boxes", "concepts", "dependencies"]
    assert torch.equal(batch.side["boxes"], split.boxes[step.pairs.images])
    assert torch.equal(batch.side["concepts"], split.side["concepts"][step.pairs.texts])
    assert torch.equal(batch.to("cpu").side["adjacency"], batch.side["adjacency"])
    assert make_batches_of("rvse", data).side == {}, "nobody else pays for them"


def make_batches_of(name, data):
    tokenizer = selhn.Vocabulary.build(data.train.captions)
    other = create_model(name, tokenizer=tokenizer, feature_dim=data.feature_dim, dim=8, word_dim=8)
    return make_batches(other, data, TrainConfig(batch_size=16, device="cpu"), torch.device("cpu"))


def test_scores_in_blocks_are_those_of_a_batch(model, data, tmp_path):
    split = data.test
    images, texts = encode_split(model, split, block=7)
    scores = score_split(model, split, block=7)
    torch.testing.assert_close(scores, images @ texts.T)
    with torch.no_grad():
        direct = model.encode_images(
            torch.zeros(split.num_images, 1, 1), **taken_side(model, split.side, "images")
        )
    torch.testing.assert_close(images, direct)
    stored = score_split(model, split, path=tmp_path / "scores")
    torch.testing.assert_close(stored, scores)
    moved = replace(split, boxes=split.boxes.flip(0))
    with pytest.raises(SelhnError):
        score_split(model, moved, path=tmp_path / "scores")


@pytest.mark.parametrize("loss", [TripletSelHN(), AOQ(depth=5)])
def test_training(model, data, loss, tmp_path):
    before = evaluate(model, data.dev).rsum
    run = selhn.train(model, data, loss=loss, epochs=1, batch_size=16, corrupt_words=0.0, lr=1e-2, device="cpu",
                      out=tmp_path / "run", quiet=True)  # fmt: skip
    assert run is not None
    assert evaluate(model, data.dev).rsum != before
    assert all(model.parses)


def test_twins_pass_them_on(model, data):
    both = Twins(model, Sided(model.tokenizer))
    assert both.side == model.side
    assert score_split(both, data.test).shape == (data.test.num_images, data.test.num_texts)


def test_what_deletes_words_does_not_go_with_parses(model, data):
    with pytest.raises(SelhnError):
        make_batches(model, data, TrainConfig(batch_size=16, device="cpu"), torch.device("cpu"))


def test_what_is_missing_is_named(model, data, tiny_data, tiny_model):
    for use in (
        lambda: evaluate(model, tiny_data.test),
        lambda: make_batches(model, tiny_data, TrainConfig(device="cpu"), torch.device("cpu")),
        lambda: model.embed_texts(["a dog"]),
        lambda: Index.build(towers_of(model), data.test),
        lambda: PairScorer.of_split(model, data.test),
        lambda: model(replace(Batches(data.test, model.tokenizer, 4).assemble_rows(torch.arange(4)))),
    ):
        with pytest.raises(SelhnError, match="Sided needs"):
            use()
    with pytest.raises(SelhnError, match="boxes"):
        model.embed_images(torch.zeros(1, 1, 4))
    without = replace(data.test, given_side={"concepts": data.test.side["concepts"]})
    assert evaluate(model, without).rsum >= 0, "it uses parses only if there are any"
