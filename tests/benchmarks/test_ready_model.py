"""What is packed of a ready model can be loaded again."""

import pytest
import torch
from ready_model import write_ready
from ready_train import shipped
from safetensors.torch import load_file, save_file

from selhn.base.types import Batch
from selhn.models import create_model
from selhn.pictures.ready import PROJECTION_FILE, WORD_VECTORS, load_ready_model, load_ready_projection

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
    model = create_model("rvsepp", bert=bert, feature_dim=6, dim=4).eval()
    published = {name: weight.clone() for name, weight in model.state_dict().items()}
    folder = tmp_path / "ready"
    folder.mkdir()
    with torch.no_grad():
        for layer in model.text.words.bert.encoder.parameters():
            layer.add_(0.05 * torch.randn_like(layer))
    save_file(shipped(model.state_dict(), published, rank=8), tmp_path / "trained.safetensors")
    first = create_model("rvsepp", bert=bert, feature_dim=6, dim=4)
    write_ready(folder, tmp_path / "trained.safetensors", first, {"note": "small"})
    save_file(
        {"mean": torch.rand(6), "components": torch.rand(6, 2), "scale": torch.rand(2)},
        folder / PROJECTION_FILE,
    )
    return model, bert, folder


def test_heads_and_tower_are_joined(trained):
    model, bert, folder = trained
    assert not any(key.startswith(WORD_VECTORS) for key in load_file(folder / "heads.safetensors"))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    joined = load_ready_model(bert, folder)
    assert torch.equal(torch.rand(1), expected), "loading draws no random numbers of the caller"
    tokens, mask = joined.tokenize(["w1 w2", "w3"])
    batch = Batch(torch.rand(2, 3, 6), torch.ones(2, 3, dtype=torch.bool), tokens, mask, torch.arange(2))
    assert torch.allclose(joined(batch).scores, model(batch).scores, atol=5e-3)  # in float16 and int8
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
    with pytest.raises(ValueError, match="heads.safetensors .* damaged .*install selhn again"):
        load_ready_model(bert, folder)
    (folder / "projection.safetensors").unlink()
    with pytest.raises(ValueError, match="projection.safetensors is missing"):
        load_ready_projection(folder)
