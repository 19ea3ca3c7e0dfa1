"""BERT as a text encoder, from a local Hugging Face folder; nothing is ever downloaded."""

import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.minilm import MINILM, minilm_folder
from selhn.base.tensor_files import built_with, read_tensors
from selhn.base.untrusted import read_json
from selhn.ops.bert_encoder import BertConfig, BertEncoder
from selhn.text import WordPiece

_NOT_ENCODER = re.compile(r"pooler\.|cls\.|embeddings\.position_ids")
_NEW_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_OLD_NAMES = re.compile(r"LayerNorm\.(?:gamma|beta)$")


class Bert(nn.Module):
    """The last hidden states of a BERT, [CLS] and [SEP] included.

    Args:
        source: "minilm" (its weights come in a Python package), the folder of a BERT, or a configuration as a
            dict; its weights are then random.
        freeze: do not train the weights, and use no dropout.
    """

    is_pretrained = True
    """Its weights learn at a lower rate than those of the rest of a model."""

    def __init__(self, source: str | Path | Mapping[str, Any] = MINILM, freeze: bool = False):
        super().__init__()
        if not isinstance(source, (str, Path, Mapping)):
            raise SelhnError(f"bert takes {MINILM!r}, a folder or a configuration, got {source!r}")
        if isinstance(source, Mapping):
            self.bert = BertEncoder(BertConfig.read(source))
        else:
            folder = bert_folder(source)
            config = BertConfig.read(bert_config(folder))
            weights = bert_weights(read_tensors(folder / "model.safetensors"))
            self.bert = built_with(lambda: BertEncoder(config), weights, str(folder))
        self.freeze = freeze
        if freeze:
            self.requires_grad_(False)
        self.train()

    @property
    def width(self) -> int:
        return self.bert.config.hidden_size

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as plain values: `Bert(config)` has the same shapes."""
        return self.bert.config.to_dict()

    def train(self, mode: bool = True) -> "Bert":
        """Training mode; a frozen BERT stays in evaluation mode, so that its dropout is off."""
        super().train(mode and not self.freeze)
        return self

    def forward(self, tokens: Int[Tensor, "T N"], mask: Bool[Tensor, "T N"]) -> Float[Tensor, "T N h"]:
        positions = self.bert.config.max_position_embeddings
        if tokens.shape[1] > positions:
            raise SelhnError(
                f"texts of {tokens.shape[1]} tokens are longer than the {positions} this BERT has positions "
                "for: encode them with its own tokenizer, which cuts them"
            )
        with torch.no_grad() if self.freeze else nullcontext():
            return self.bert(tokens, mask)


def bert_folder(source: str | Path) -> Path:
    """The folder of a BERT by name or path; its content is checked."""
    if source == MINILM:
        return minilm_folder()
    folder = Path(source)
    if not (folder / "config.json").exists():
        raise NotFound(
            f"{folder} is not the folder of a BERT: it has no config.json; or write bert={MINILM!r}"
        )
    kind = read_json(folder / "config.json").get("model_type")
    if kind != "bert":
        raise SelhnError(
            f"{folder} holds a model of type {kind!r}: only 'bert' can be used as a text encoder here"
        )
    if not (folder / "model.safetensors").exists():
        raise NotFound(
            f"{folder} has no model.safetensors: weights in other formats can run code and are not read"
        )
    return folder


def bert_config(source: str | Path) -> dict[str, Any]:
    """The configuration of a BERT by name or path."""
    return read_json(bert_folder(source) / "config.json")


def bert_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The encoder's weights from a published state dict: without heads, with current names."""
    renamed = {
        _OLD_NAMES.sub(lambda m: _NEW_NAMES[m[0]], key.removeprefix("bert.")): state[key] for key in state
    }
    return {key: value for key, value in renamed.items() if not _NOT_ENCODER.match(key)}


def bert_tokenizer(source: str | Path | Mapping[str, Any]) -> WordPiece | None:
    """The tokenizer beside the weights; None for a BERT that is only a configuration."""
    if isinstance(source, Mapping):
        return None
    folder = bert_folder(source)
    tokenizer, known = WordPiece.load(folder), BertConfig.read(bert_config(folder)).vocab_size
    if tokenizer.size > known:
        raise Damaged(
            f"the tokenizer in {folder} has {tokenizer.size} tokens but its BERT has {known}: copy it again"
        )
    return tokenizer
