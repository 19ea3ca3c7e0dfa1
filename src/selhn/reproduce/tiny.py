"""`--tiny`: every run in some seconds, to see that everything works; its numbers mean nothing."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from selhn.data import Data
from selhn.layers import Bert
from selhn.text import Vocabulary

SETTINGS = ("epochs=6", "batch_size=32", "lr=1e-3", "decay_at=[]", "drop_regions=0", "corrupt_words=0", "device=cpu",
            "model.dim=64", "model.word_dim=32", "model.sim_dim=32")  # fmt: skip
WORLD_SETTINGS = ("data.images=300", "data.width=128")
"""Added if the data is the generated world."""
_BERT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
         "max_position_embeddings": 64, "model_type": "bert"}  # fmt: skip


def write_bert(folder: Path, data: Data) -> Path:
    """A BERT of one layer with random weights that knows the words of the training texts."""
    words = [word for word in Vocabulary.build(data.train.captions).words if not word.startswith("<")]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    config = {**_BERT, "vocab_size": len(pieces)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_file(Bert(config).bert.state_dict(), folder / "model.safetensors")
    return folder
