"""Models from elsewhere, adapted: trained, measured, diagnosed, indexed; by two embeddings or by scores alone."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import selhn
from selhn.base.errors import SelhnError
from selhn.data import Data, DenseFeatures, Split
from selhn.diagnose import diagnose
from selhn.export import towers_of
from selhn.models import MODELS, register_model
from selhn.search import Item

COLOURS = ("red", "green", "blue")


class Theirs(nn.Module):
    """As somebody else would write it, for pictures (n, 3, 8, 8)."""

    def __init__(self, words, width=8):
        super().__init__()
        self.picture = nn.Conv2d(3, width, 8)
        self.words = nn.Embedding(words, width)

    def see(self, pixels):
        return self.picture(pixels).flatten(1)

    def read(self, tokens, mask):
        return (self.words(tokens) * mask[..., None]).sum(1)


def coloured(name, number):
    """Pictures of one colour each, as patches of 4 x 4, each with the name of its colour."""
    of_image = torch.arange(number) % 3
    channels = nn.functional.one_hot(of_image, 3) * 2.0 - 1 + 0.05 * torch.randn(number, 3)
    patches = channels[:, None, :, None].expand(number, 5, 3, 16).flatten(2)
    captions = [f"something {COLOURS[colour]}" for colour in of_image.tolist()]
    names = [f"{name}{image}" for image in range(number)]
    return Split(name, DenseFeatures(patches), captions, torch.arange(number), names)


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(0)
    return Data("coloured", coloured("train", 48), coloured("dev", 3), coloured("test", 3))


def embedding_model(data):
    words = selhn.Vocabulary.build(data.train.captions)
    theirs = Theirs(words.size)
    return selhn.adapt(theirs, images=theirs.see, texts=theirs.read, tokenizer=words, pixels=True)


def test_two_embeddings_through_everything(data, tmp_path):
    torch.manual_seed(0)
    model = embedding_model(data)
    assert model.is_embedding
    run = selhn.train(
        model, data, selhn.TripletSelHN(), out=tmp_path / "run", epochs=8, batch_size=12, lr=2e-2, quiet=True,
        drop_regions=0.0, corrupt_words=0.0,
    )  # fmt: skip
    assert run.test.i2t[1] == 100
    assert selhn.evaluate(model, data.test).rsum == run.test.rsum
    assert diagnose(tmp_path / "run").verdict.to_dict()
    regions, _ = data.test.features.gather(torch.arange(3))
    index = selhn.Index.build(towers_of(model), [Item(COLOURS[i], regions=regions[i]) for i in range(3)])
    assert [index.search(f"something {colour}", k=1)[0].id for colour in COLOURS] == list(COLOURS)
    with pytest.raises(SelhnError):
        model.save(tmp_path / "model")


def test_scores_alone(data):
    torch.manual_seed(0)
    words = selhn.Vocabulary.build(data.train.captions)
    theirs = Theirs(words.size)

    def compare(pixels, region_mask, tokens, token_mask):
        assert pixels.shape[1:] == (3, 8, 8)
        return normalize(theirs.see(pixels), dim=1) @ normalize(theirs.read(tokens, token_mask), dim=1).T

    model = selhn.adapt(theirs, scores=compare, tokenizer=words, pixels=True)
    assert not model.is_embedding
    same = selhn.adapt(theirs, images=theirs.see, texts=theirs.read, tokenizer=words, pixels=True)
    assert selhn.evaluate(model, data.test).rsum == selhn.evaluate(same, data.test).rsum
    run = selhn.train(model, data, selhn.TripletSelHN(), epochs=1, batch_size=12, quiet=True)
    assert run.best_epoch == 0


def test_functions_alone_are_measured(data):
    words = selhn.Vocabulary.build(data.train.captions)
    theirs = Theirs(words.size)
    plain = selhn.adapt(images=theirs.see, texts=theirs.read, tokenizer=words, pixels=True)
    known = selhn.adapt(theirs, images=theirs.see, texts=theirs.read, tokenizer=words, pixels=True)
    assert selhn.evaluate(plain, data.test).rsum == selhn.evaluate(known, data.test).rsum


def test_a_registered_one_is_saved(data, tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, "theirs", None)  # so that it is removed again
    del MODELS["theirs"]

    def build(tokenizer=None, feature_dim=48):
        theirs = Theirs(tokenizer.size)
        return selhn.adapt(theirs, images=theirs.see, texts=theirs.read, tokenizer=tokenizer, pixels=True)

    register_model("theirs", build)
    model = selhn.create_model("theirs", tokenizer=selhn.Vocabulary.build(data.train.captions))
    model.save(tmp_path / "model")
    regions, _ = data.test.features.gather(torch.arange(3))
    assert torch.equal(
        selhn.load_model(tmp_path / "model").embed_images(regions), model.embed_images(regions)
    )


def test_what_is_missing(data):
    with pytest.raises(SelhnError, match="scores="):
        selhn.adapt(None, images=lambda *given: None)
    wrong = selhn.adapt(Theirs(9), images=lambda *given: (), texts=lambda *given: ())
    with pytest.raises(SelhnError, match="tuple"):
        wrong.encode_images(torch.rand(1, 5, 48))
    one = selhn.adapt(Theirs(9), images=lambda regions, mask: regions[:1, 0], texts=lambda *given: ())
    with pytest.raises(SelhnError, match=r"\(1, 48\)"):
        one.encode_images(torch.rand(3, 5, 48))
