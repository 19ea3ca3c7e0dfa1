from dataclasses import replace

import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.losses import AOQ
from selhn.models import create_model, encode_batch
from selhn.text import Vocabulary
from selhn.training.protocols import OfflineNegatives
from selhn.training.protocols.offline import paired_scores
from selhn.training.step import make_batches


@pytest.fixture
def make_protocol(tiny_data, tiny_config, tiny_model):
    def make(loss=None, name="rvse", **settings):
        model = tiny_model(name)
        config = replace(tiny_config, drop_regions=0.0, corrupt_words=0.0, **settings)
        batches = make_batches(model, tiny_data, config, torch.device("cpu"))
        return OfflineNegatives(model, loss or AOQ(depth=20), tiny_data, batches, config)

    return make


def test_what_is_drawn_is_a_quintuplet(make_protocol, tiny_data):
    protocol = make_protocol()
    protocol.begin_epoch(0)
    texts, images = protocol.tables["texts"], protocol.tables["images"]
    assert (texts.shape, images.shape) == ((100, 20), (500, 4)), "five texts an image: a fifth of the places"
    image_of_text = tiny_data.train.image_of_text
    step = next(protocol.batches.steps(0))
    protocol.batches.generator.manual_seed(step.seed)
    drawn = protocol.draw(step.pairs)
    far_texts, second_texts = drawn.texts.split(64)
    far_images, second_images = drawn.images.split(64)
    place = (texts[step.pairs.images] == far_texts[:, None]).nonzero()
    assert len(place) == 64, "T- is one of the hardest texts of the image"
    image_place = (images[step.pairs.texts] == far_images[:, None]).nonzero()
    assert torch.equal(image_place[:, 1], place[:, 1] // 5), "V- is as hard for the text"
    assert torch.equal(image_of_text[far_texts], second_images)
    assert torch.equal(image_of_text[second_texts], far_images)
    assert (image_of_text[far_texts] != step.pairs.images).all()
    assert (far_images != step.pairs.images).all()
    assert place[:, 1].unique().numel() > 10
    assert second_texts.remainder(5).unique().numel() == 5, "any of the texts of V-"


@pytest.mark.parametrize("name", ["rvse", "scan_t2i_avg", "vsepp_order"])
def test_the_scores_of_the_further_pairs(name, make_protocol):
    protocol = make_protocol(name=name)
    protocol.begin_epoch(0)
    protocol.model.eval()
    step, batches, model = next(protocol.batches.steps(0)), protocol.batches, protocol.model
    batch = batches.assemble(step)
    with torch.no_grad():
        match, given = protocol.match(step.pairs, batch)
        assert torch.equal(match.scores, model(batch).scores)
        batches.generator.manual_seed(step.seed)
        drawn = protocol.draw(step.pairs)
        far_texts = batches.assemble_rows(drawn.texts[:64])
        far_pairs = batches.assemble_seeded(drawn, batches.texts.tokens.shape[1])
        images, texts = encode_batch(model, batch)
        all_images, all_texts = encode_batch(model, far_pairs)
        other_texts = encode_batch(model, far_texts)[1]
        close = {"rtol": 0, "atol": 1e-5}
        torch.testing.assert_close(given.negative[0], model.score(images, other_texts).diagonal(), **close)
        torch.testing.assert_close(given.negative[1], model.score(all_images[:64], texts).diagonal(), **close)
        everything = model.score(all_images, all_texts).diagonal()
        torch.testing.assert_close(given.pair, everything.view(2, 64), **close)


def test_lists_are_made_anew_every_few_epochs(make_protocol):
    protocol = make_protocol(AOQ(depth=20, refresh=2))
    protocol.begin_epoch(0)
    first = protocol.state_dict()["texts"].clone()
    with torch.no_grad():
        protocol.model.image.fc.weight.normal_()
    protocol.begin_epoch(1)
    assert torch.equal(protocol.tables["texts"], first)
    protocol.begin_epoch(2)
    assert not torch.equal(protocol.tables["texts"], first)


def test_no_more_places_than_there_are_negatives(make_protocol):
    protocol = make_protocol(AOQ(depth=10_000))
    assert protocol.tables["texts"].shape == (100, 495)
    assert protocol.tables["images"].shape == (500, 99)
    protocol.begin_epoch(0)
    step = next(protocol.batches.steps(0))
    assert protocol.draw(step.pairs).texts.max() < 500


def test_what_is_refused(tiny_data, tiny_config):
    model = create_model(
        "vse_fc", networks=2, tokenizer=Vocabulary.build(tiny_data.train.captions), feature_dim=256, dim=8
    )
    batches = make_batches(model, tiny_data, tiny_config, torch.device("cpu"))
    with pytest.raises(SelhnError, match="one network"):
        OfflineNegatives(model, AOQ(), tiny_data, batches, tiny_config)
    model = model.both[0]
    one = replace(tiny_data.train, image_of_text=torch.zeros(500, dtype=torch.int64))
    with pytest.raises(SelhnError, match="one image"):
        OfflineNegatives(model, AOQ(), replace(tiny_data, train=one), batches, tiny_config)


def test_features_that_lie_elsewhere_are_not_recorded(make_protocol):
    protocol = make_protocol()
    assert protocol.capturable
    protocol.batches.resident = False
    again = OfflineNegatives(protocol.model, protocol.loss, protocol.data, protocol.batches, protocol.config)
    assert not again.capturable


def test_paired_scores_of_embeddings(tiny_model):
    images, texts = torch.rand(2, 5, 16)
    model = tiny_model()
    torch.testing.assert_close(paired_scores(model, images, texts), model.score(images, texts).diagonal())
