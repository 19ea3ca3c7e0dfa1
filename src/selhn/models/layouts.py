"""How the authors' programs name a model's parts, options and files: each model's layout stands beside its builder."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, tuple[str, Callable[[Any], Any]]]
Names = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]
Axes = Sequence[tuple[str, str, int]]


@dataclass(frozen=True)
class AuthorsLayout:
    """How the authors name and order the parts of a model."""

    names: Names
    """Their names to ours: patterns and replacements, applied in order; an empty name drops the weight."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Options of their programs that our model supports with one value only."""
    options: Options = field(default_factory=dict)
    """Their other options: our setting for each, and how to convert its value."""
    parts: tuple[str, ...] = ("img_enc.", "txt_enc.")
    """The prefixes of the state dicts in the list that their checkpoint holds."""
    ours: Mapping[str, Any] = field(default_factory=dict)
    """Our settings that reproduce their program."""
    unsaved: tuple[str, ...] = ()
    """Prefixes of weights that their checkpoints leave out, or store as options."""
    needed: Mapping[str, str] = field(default_factory=dict)
    """Those of them that are needed outside training, and the setting that must provide each."""
    axes: Axes = ()
    """Further settings that are the length of a weight's axis, as in `AXES`."""
    numbered: Mapping[str, str] = field(default_factory=dict)
    """Settings that count parts of the same kind: the pattern of their names."""
    present: Mapping[str, str] = field(default_factory=dict)
    """Settings that are true if there is a weight of this name."""
    one_side: bool = False
    """Whether a state dict may hold the encoder of one side only."""


AXES: Axes = (
    ("vocab_size", "txt_enc.embed.weight", 0),
    ("word_dim", "txt_enc.embed.weight", 1),
    ("dim", "txt_enc.rnn.weight_hh_l0", 1),
    ("dim", "txt_enc.linear.weight", 0),
    ("dim", "img_enc.fc.weight", 0),
    ("feature_dim", "img_enc.fc.weight", 1),
)
"""Settings read from the length of a weight's axis; if several weights are present, the last counts."""
BERT_AXES: Axes = (
    ("vocab_size", "txt_enc.bert.embeddings.word_embeddings.weight", 0),
    ("max_position_embeddings", "txt_enc.bert.embeddings.position_embeddings.weight", 0),
    ("type_vocab_size", "txt_enc.bert.embeddings.token_type_embeddings.weight", 0),
    ("hidden_size", "txt_enc.linear.weight", 1),
    ("intermediate_size", "txt_enc.bert.encoder.layer.0.intermediate.dense.weight", 0),
)

GRU_NAMES: Names = [(r"(rnn|gru)\.(\w+)_reverse$", r"\1.back.\2"), (r"(rnn|gru)\.(\w+_l0)$", r"\1.ahead.\2")]
FRAGMENT_NAMES: Names = [
    (r"\.cap_rnn\.", ".rnn."),
    *GRU_NAMES,
    (r"^img_enc\.", "image."),
    (r"^txt_enc\.", "text.words."),
]
UNIT_VECTORS = {"no_imgnorm": False, "no_txtnorm": False}
FRAGMENTS = {**UNIT_VECTORS, "raw_feature_norm": "clipped_l2norm"}
SMOOTH: Options = {"lambda_softmax": ("smooth", float)}
