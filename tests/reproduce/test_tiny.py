import torch

from selhn.data import load_data
from selhn.models import create_model
from selhn.reproduce.paper_runs import TINY, TINY_WORLD, write_tiny_bert
from selhn.training import get_recipe, override


def test_a_small_bert_that_knows_the_words(tmp_path):
    data = load_data("world", images=100, width=32)
    folder = write_tiny_bert(tmp_path / "bert", data)
    model = create_model("rvsepp", bert=str(folder), feature_dim=32, dim=16)
    tokens, mask = model.tokenize(data.train.captions[:50])
    assert not (tokens == model.tokenizer.tokenizer.token_to_id("[UNK]")).any()
    with torch.no_grad():
        assert model.eval().encode_texts(tokens, mask).shape == (50, 16)
    weights = (folder / "model.safetensors").read_bytes()
    assert write_tiny_bert(folder, data) == folder
    assert (folder / "model.safetensors").read_bytes() == weights, "the same weights every time"


def test_the_settings_are_settings():
    config = override(get_recipe("rvse_selhn_world"), [*TINY, *TINY_WORLD])
    assert config.train.epochs < 20
    assert config.data_settings["images"] < 1000
