import pytest
import torch
from model_cases import make_batch

from selhn.base.errors import SelhnError
from selhn.base.types import Match
from selhn.models import AbstractMatcher, create_model, encode_batch, load_model


class Mine(AbstractMatcher):
    """A model of a user: the mean of everything."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(12, 3)

    def encode_images(self, regions, region_mask):
        return self.fc(regions).mean(1)

    def encode_texts(self, tokens, token_mask):
        return tokens[:, :3].float()

    def score(self, images, texts):
        return images @ texts.T

    def forward(self, batch):
        images, texts = encode_batch(self, batch)
        return Match(self.score(images, texts), {"length": images.square().mean()})


def test_a_model_of_your_own():
    model = Mine()
    match = model(make_batch())
    assert match.scores.shape == (6, 6)
    assert match.aux["length"] > 0
    assert not model.is_embedding


def test_pairs_alone_are_not_for_every_model():
    model, batch = Mine(), make_batch()
    images, texts = encode_batch(model, batch)
    assert torch.equal(model.activation(model.logits(images, texts)), model.score(images, texts))
    with pytest.raises(SelhnError):
        model.logits(images, texts, aligned=True)


def test_the_base_is_narrow():
    public = [name for name in vars(AbstractMatcher) if not name.startswith("_")]
    assert len(public) <= 12, public


def test_both_encoders_must_be_there():
    with pytest.raises(TypeError, match="abstract"):
        AbstractMatcher()


def test_only_embeddings_have_a_score_already():
    model, vectors = Mine(), torch.eye(3)
    without = AbstractMatcher.score
    with pytest.raises(NotImplementedError):
        without(model, vectors, vectors)
    model.is_embedding = True
    assert torch.equal(without(model, 2 * vectors, vectors), 2 * vectors)


def test_a_model_of_your_own_is_not_saved_as_a_folder(tmp_path):
    with pytest.raises(SelhnError):
        Mine().save(tmp_path / "model")


def test_no_vocabulary_no_sentences(tmp_path):
    model = create_model("rvse", vocab_size=9, feature_dim=4, dim=4, word_dim=3)
    with pytest.raises(SelhnError):
        model.tokenize(["a dog"])
    model.save(tmp_path / "model")
    assert load_model(tmp_path / "model").tokenizer is None
