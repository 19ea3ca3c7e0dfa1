import pytest
import torch
from model_cases import make_batch, make_model

from selhn.models import AbstractMatcher, create_model, load_model


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

    def auxiliary(self, batch, images, texts):
        return {"length": images.square().mean()}


def test_a_model_of_your_own():
    model = Mine()
    match = model(make_batch())
    assert match.scores.shape == (6, 6)
    assert match.aux["length"] > 0
    assert len(model.parameter_groups(0.1)) == 1
    assert not model.is_embedding


def test_pairs_alone_are_not_for_every_model():
    model, batch = Mine(), make_batch()
    assert not model.pairs_apart
    with pytest.raises(ValueError, match="Mine scores all images against all texts only"):
        model.score_pairs(*model.encode(batch))


def test_the_three_methods_must_be_there():
    with pytest.raises(TypeError, match="abstract"):
        AbstractMatcher()


def test_a_model_of_your_own_is_not_saved_as_a_folder(tmp_path):
    with pytest.raises(ValueError, match="add yours to MODELS"):
        Mine().save(tmp_path / "model")


def test_no_vocabulary_no_sentences(tmp_path):
    model = create_model("rvse", vocab_size=9, feature_dim=4, dim=4, word_dim=3)
    with pytest.raises(ValueError, match="pass tokenizer=Vocabulary.build"):
        model.tokenize(["a dog"])
    model.save(tmp_path / "model")
    assert load_model(tmp_path / "model").tokenizer is None


def test_pretrained_weights_learn_more_slowly():
    model = make_model("rvsepp")
    own, bert = model.parameter_groups(1.0, text_lr_factor=0.25)
    assert (own["lr"], bert["lr"]) == (1.0, 0.25)
    names = {id(p): key for key, p in model.named_parameters()}
    assert all(names[id(p)].startswith("text.words.bert.") for p in bert["params"])
    grouped = sorted(names[id(p)] for p in own["params"] + bert["params"])
    assert grouped == sorted(key for key, p in model.named_parameters() if p.requires_grad)
    assert [group["lr"] for group in make_model("rvse").parameter_groups(0.5)] == [0.5]


def test_frozen_weights_are_in_no_group():
    model = make_model("rvsepp", freeze_bert=True).train()
    assert len(model.parameter_groups(1.0)) == 1
    assert not model.text.words.training
    assert model.text.training
