"""Checkpoints written by the authors' public code, read into our models: one row of `LAYOUTS` per model.

A file is opened by `read_checkpoint`, which runs no code out of it.
"""

import inspect
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import not_
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.names import did_you_mean
from selhn.base.tensor_files import check_fits, check_sizes, read_checkpoint
from selhn.layers import bert_weights
from selhn.layers.bert import bert_config
from selhn.models import MODELS, AbstractMatcher, create_model
from selhn.models.vse import VSE

MOST_SPARED = 2**28
"""Numbers that a model may have beside those in the file, which may hold one of its sides only."""

State = dict[str, Tensor]
Settings = dict[str, Any]
Options = Mapping[str, tuple[str, Callable[[Any], Any]]]

Names = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]

_BERT = "text.words.bert."
_GRU = [(r"(rnn|gru)\.(\w+)_reverse$", r"\1.back.\2"), (r"(rnn|gru)\.(\w+_l0)$", r"\1.ahead.\2")]
_VSEPP_NAMES = [(r"^img_enc\.fc\.", "fc."), (r"^txt_enc\.(embed|rnn)\.", r"\1.")]
_VSRN_NAMES: Names = [
    (r"^img_enc\.fc\.", "reasoning.fc."),
    (r"^img_enc\.Rs_GCN_([1-9])\.", lambda found: f"reasoning.layers.{int(found[1]) - 1}."),
    (r"\.W\.0\.", ".out."),
    (r"\.W\.1\.", ".norm."),
    (r"^img_enc\.img_rnn\.", "region_rnn."),
    (r"^img_enc\.bn\.", "final_bn."),
    (r"^txt_enc\.(embed|rnn)\.", r"\1."),
]
_VSE_NAMES = [
    *_GRU,
    (r"^img_enc\.(fc|mlp)\.", r"image.\1."),
    (r"^img_enc\.gpool\.", "image.gpo."),
    (r"^txt_enc\.(embed|rnn)\.", r"text.words.\1."),
    (r"^txt_enc\.bert\.", "text.words.bert."),
    (r"^txt_enc\.linear\.", "text.fc."),
    (r"^txt_enc\.gpool\.", "text.gpo."),
]
_FRAGMENT_NAMES = [
    (r"\.cap_rnn\.", ".rnn."),
    *_GRU,
    (r"^img_enc\.", "image."),
    (r"^txt_enc\.", "text.words."),
]
_SGRAF_NAMES = [
    *_FRAGMENT_NAMES,
    (r"^sim_enc\.v_global_w\.", "image.pool."),
    (r"^sim_enc\.t_global_w\.", "text.pool."),
    (r"\.embedding_local\.", ".local."),
    (r"\.embedding_global\.", ".mean."),
    (r"\.embedding_common\.0\.", ".common."),
    (r"^sim_enc\.sim_tranloc_w\.", "head.local."),
    (r"^sim_enc\.sim_tranglo_w\.", "head.whole."),
    (r"^sim_enc\.sim_eval_w\.", "head.last."),
    (r"^sim_enc\.SGR_module\.", "head.reasoning.steps."),
    (r"\.graph_(query|key)_w\.", r".\1."),
    (r"\.sim_graph_w\.", ".value."),
    (r"^sim_enc\.SAF_module\.attn_sim_w\.", "head.reasoning.attention."),
    (r"^sim_enc\.SAF_module\.bn\.", "head.reasoning.norm."),
]
_NAAF_NAMES = [(r"^txt_enc\.embed\.glove\.", "txt_enc.embed."), *_FRAGMENT_NAMES]
_NAAF_OPTIONS = {"thres": ("threshold", float), "thres_safe": ("threshold_safe", float), "alpha": ("alpha", float)}
_CAMP_NAMES = [
    *_FRAGMENT_NAMES,
    (r"^criterion\.sim\.(weighted_txt|img)_query_fc\.", r"head.to_regions.\1_query."),
    (r"^criterion\.sim\.(weighted_txt|txt)_key_fc\.", r"head.to_regions.\1_key."),
    (r"^criterion\.sim\.(weighted_img|txt)_query_fc\.", r"head.to_words.\1_query."),
    (r"^criterion\.sim\.(weighted_img|img)_key_fc\.", r"head.to_words.\1_key."),
    (r"\.weighted_(txt|img)_(query|key)\.", r".own_\2."),
    (r"\.(txt|img)_(query|key)\.", r".\2."),
    (r"^criterion\.sim\.(fc|final_reduce)_1\.", r"head.to_regions.\1."),
    (r"^criterion\.sim\.(fc|final_reduce)_2\.", r"head.to_words.\1."),
    (r"\.fc\.0\.", ".fuse."),
    (r"\.final_reduce\.linear\.", ".summary."),
    (r"^criterion\.sim\.fc_out\.0\.", "head.out.0."),
    (r"^criterion\.sim\.fc_out\.3\.", "head.out.2."),
]
_IMRAM_NAMES = [
    (r"^img_enc\.fc_local\.", "image.fc."),
    *_FRAGMENT_NAMES,
    (r"^linear_(t2i|i2t)\.", r"head.memories.\1.output."),
    (r"^gate_(t2i|i2t)\.", r"head.memories.\1.gate."),
]
_AXES = [
    ("vocab_size", "txt_enc.embed.weight", 0),
    ("word_dim", "txt_enc.embed.weight", 1),
    ("vocab_size", "txt_enc.embed.glove.weight", 0),
    ("word_dim", "txt_enc.embed.glove.weight", 1),
    ("dim", "txt_enc.rnn.weight_hh_l0", 1),
    ("dim", "txt_enc.linear.weight", 0),
    ("dim", "img_enc.fc.weight", 0),
    ("feature_dim", "img_enc.fc.weight", 1),
    ("feature_dim", "img_enc.fc_local.weight", 1),
    ("num_regions", "sim_enc.v_global_w.embedding_local.1.weight", 0),
    ("sim_dim", "sim_enc.sim_eval_w.weight", 1),
    ("heads", "criterion.sim.final_reduce_1.linear.2.weight", 0),
]
"""Settings that are the length of an axis of a weight; of several that are there the last counts."""
_BERT_AXES = [
    ("vocab_size", "txt_enc.bert.embeddings.word_embeddings.weight", 0),
    ("max_position_embeddings", "txt_enc.bert.embeddings.position_embeddings.weight", 0),
    ("type_vocab_size", "txt_enc.bert.embeddings.token_type_embeddings.weight", 0),
    ("hidden_size", "txt_enc.linear.weight", 1),
    ("intermediate_size", "txt_enc.bert.encoder.layer.0.intermediate.dense.weight", 0),
]


@dataclass(frozen=True)
class AuthorsLayout:
    """How the authors name and order the parts of a model."""

    names: Names
    """Their names to ours: patterns and replacements, all applied in this order; without a name it is left out."""
    fixed: Mapping[str, Any]
    """Options of their programs that the model has only with one value."""
    options: Options = field(default_factory=dict)
    """Other options of theirs: the setting of ours that each is, and how its value becomes ours."""
    parts: tuple[str, ...] = ("img_enc.", "txt_enc.")
    """The prefixes of the state dicts in the list that their checkpoint holds."""
    unsaved: str = "-"
    """What the names of weights begin with that their checkpoints leave out, or hold as options."""


def load_official(
    name: str, source: Path | str | Mapping[str, Tensor | np.ndarray], **settings: Any
) -> AbstractMatcher:
    """A model in evaluation mode with the authors' weights.

    `source` is their .pth file, or a flat state dict with their names behind the prefixes `img_enc.` and
    `txt_enc.`. Sizes are read from the shapes, settings default to the authors', and their own names for them
    are understood (`no_imgnorm=True`). Every weight must find its place, with two exceptions: a state dict of
    one side only gives a model that encodes that side, and with `bert=` the BERT may be left out.
    """
    if name not in LAYOUTS:
        raise NotFound(f"no public weights are known for {name!r}: {did_you_mean(name, LAYOUTS)}")
    layout = LAYOUTS[name]
    if isinstance(source, (str, Path)):
        where = str(source)
        state, options = _read_checkpoint(Path(source), layout.parts)
    else:
        where, state, options = "the state dict", _flat(source), {}
    theirs = {option for each in LAYOUTS.values() for option in (*each.fixed, *each.options)} - {"lambda_lse"}
    options.update({key: settings.pop(key) for key in theirs if key in settings})
    own_bert, sizes = settings.get("bert"), _sizes(name, state)
    if isinstance(own_bert, Mapping) and "bert" in sizes:  # a few values add to what the shapes tell
        settings["bert"] = {**sizes["bert"], **own_bert}
    own = {**sizes, **_our_settings(name, layout, options), **settings}
    shapes = {**own, "bert": bert_config(own["bert"])} if isinstance(own.get("bert"), (str, Path)) else own
    with torch.device("meta"):  # without memory, until the weights are known to fit
        outline = create_model(name, **shapes)
    found, absent = _renamed(outline, state, layout, where, "bert" in settings)
    model = create_model(name, **own)
    model.load_state_dict({**model.state_dict(), **found})
    if absent:
        # Random weights would answer as if they knew something.
        model.register_module(absent, _Absent())
        model.name = None
    return model.eval()


def _renamed(
    outline: AbstractMatcher, state: State, layout: AuthorsLayout, where: str, own_bert: bool
) -> tuple[State, str | None]:
    """The weights under our names, after a check that they fit, and the side of the model that they lack."""
    wanted = outline.state_dict()
    found = {}
    for key, value in state.items():
        for pattern, replacement in layout.names:
            key = re.sub(pattern, replacement, key)
        # A convolution over single places is a matrix.
        flat = key in wanted and value.ndim == wanted[key].ndim + 1 and value.shape[-1] == 1
        if key:
            found[key] = value[..., 0] if flat else value
    bert = bert_weights({key.removeprefix(_BERT): found.pop(key) for key in list(found) if key.startswith(_BERT)})
    found.update({_BERT + key: value for key, value in bert.items()})
    sides = [side for side in ("image.", "text.") if not any(key.startswith(side) for key in found)]
    absent = sides[0] if isinstance(outline, VSE) and len(sides) == 1 else None
    unsaved = (layout.unsaved, absent or layout.unsaved)
    spared = [key for key in wanted if key.startswith(unsaved) or (own_bert and not bert and _BERT in key)]
    check_fits({key: value for key, value in wanted.items() if key not in spared}, found, where)
    if sum(wanted[key].numel() for key in spared) > MOST_SPARED:
        raise SelhnError(f"{where} has weights so large that those it lacks take too much memory: load both sides")
    return found, absent and absent.removesuffix(".")


class _Absent(nn.Module):
    """Stands where the weights had nothing."""

    def forward(self, *inputs: Any) -> Any:
        raise SelhnError("the weights this model was made from had no such encoder: load both sides")


def _read_checkpoint(path: Path, parts: tuple[str, ...]) -> tuple[State, Settings]:
    """Weights and options of a file such as `model_best.pth.tar`."""
    content = read_checkpoint(path, [Namespace])  # in which the authors' programs store their command line
    options = content.get("opt") if isinstance(content, dict) else None
    content = content.get("model", content) if isinstance(content, dict) else content
    several = isinstance(content, (list, tuple)) and all(isinstance(state, Mapping) for state in content)
    if several and len(content) == len(parts):
        content = {part + key: value for part, state in zip(parts, content) for key, value in state.items()}
    if not isinstance(content, Mapping):
        raise Damaged(f"{path} has no list of {len(parts)} state dicts under 'model', as the authors write it")
    state = _flat(content)
    check_sizes(state, path)
    return state, vars(options) if isinstance(options, Namespace) else {}


def _flat(state: Mapping[str, Any]) -> State:
    """Tensors, under names without the `module.` of nn.DataParallel."""
    for key, value in state.items():
        if not isinstance(key, str) or not isinstance(value, (Tensor, np.ndarray, np.generic, float, int)):
            raise SelhnError(
                f"{key!r} is not a weight ({type(value).__name__}): give names and tensors, as in a state dict"
            )
    return {
        re.sub(r"(^|\.)module\.", r"\1", key): value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
        for key, value in state.items()
    }


def _sizes(name: str, state: State) -> Settings:
    """Settings of the model from the shapes; a weight that is not there is reported later, with all others."""
    config = _lengths(state, _BERT_AXES)
    layers = {key.split(".")[4] for key in state if key.startswith("txt_enc.bert.encoder.layer.")}
    config["num_hidden_layers"] = len(layers)
    # The shapes do not tell the number of heads; a head of BERT is 64 wide.
    config["num_attention_heads"] = max(1, config.get("hidden_size", 64) // 64)
    sizes: Settings = {"vocab_size": 1, **_lengths(state, _AXES), "bert": config}
    sizes["final_bn"] = "img_enc.bn.weight" in state
    sizes["gated"] = "criterion.sim.fc_1.0.weight" in state
    for setting, part in (("steps", r"sim_enc\.SGR_module\.\d+"), ("graph_layers", r"img_enc\.Rs_GCN_\d+")):
        if several := {found[0] for key in state if (found := re.match(part, key))}:
            sizes[setting] = len(several)
    known = inspect.signature(MODELS[name].build).parameters
    return {setting: size for setting, size in sizes.items() if setting in known}


def _lengths(state: State, axes: list[tuple[str, str, int]]) -> dict[str, int]:
    return {name: state[key].shape[axis] for name, key, axis in axes if key in state and axis < state[key].ndim}


def _our_settings(name: str, layout: AuthorsLayout, options: Settings) -> Settings:
    """Options of their programs as settings of ours; an option that stands for another model is an error."""
    for option in (*layout.fixed, *layout.options):
        if not isinstance(options.get(option), str | int | float | None):
            raise SelhnError(f"the option {option} of these weights is a {type(options[option]).__name__}, not a value")
    for option, value in layout.fixed.items():
        if options.get(option, value) != value:
            raise SelhnError(
                f"these weights were trained with {option}={options[option]!r}; {name} has {value!r} there: "
                f"load them as another model, if there is one ({', '.join(LAYOUTS)})"
            )
    given = {theirs: options[theirs] for theirs in layout.options if options.get(theirs) is not None}
    try:
        return {layout.options[theirs][0]: layout.options[theirs][1](value) for theirs, value in given.items()}
    except (ValueError, OverflowError) as error:
        raise SelhnError(f"an option of these weights is not a number ({error}): pass it as a setting") from None


_UNIT = {"no_imgnorm": False, "no_txtnorm": False}
_VSEPP_OPTIONS = {"no_imgnorm": ("normalise_images", not_)}
_FRAGMENTS = {**_UNIT, "raw_feature_norm": "clipped_l2norm"}
_SMOOTH = {"lambda_softmax": ("smooth", float)}
_IMRAM_OPTIONS: Options = {**_SMOOTH, "iteration_step": ("steps", int), "no_IMRAM_norm": ("memory_norm", not_)}
_LSE = {**_SMOOTH, "lambda_lse": ("lambda_lse", float)}
_WITH_HEAD = ("img_enc.", "txt_enc.", "sim_enc.")


def _scan(direction: str, pooling: str) -> AuthorsLayout:
    fixed = {**_FRAGMENTS, "cross_attn": direction, "agg_func": pooling}
    return AuthorsLayout(_FRAGMENT_NAMES, fixed, _LSE if pooling == "LogSumExp" else _SMOOTH)


def _camp(measure: str) -> AuthorsLayout:
    parts = ("img_enc.", "txt_enc.", "criterion.sim.")
    return AuthorsLayout(_CAMP_NAMES, {"no_imgnorm": True, "no_txtnorm": True, "measure": measure}, parts=parts)


def _imram(mode: str, unused: str | None = None) -> AuthorsLayout:
    """`unused`: the direction that a model of one direction has weights for, and never reads."""
    names = [*_IMRAM_NAMES, *([] if unused is None else [(rf"^head\.memories\.{unused}\..*", "")])]
    return AuthorsLayout(names, {**_FRAGMENTS, "model_mode": mode}, _IMRAM_OPTIONS)


LAYOUTS: Mapping[str, AuthorsLayout] = {
    "vsepp": AuthorsLayout(_VSEPP_NAMES, {"measure": "cosine", "use_abs": False}, _VSEPP_OPTIONS),
    "vsepp_order": AuthorsLayout(_VSEPP_NAMES, {"measure": "order", "use_abs": True}, _VSEPP_OPTIONS),
    "vse_infty": AuthorsLayout(_VSE_NAMES, _UNIT),
    "vse_infty_bert": AuthorsLayout(_VSE_NAMES, _UNIT),
    "vsrn": AuthorsLayout(_VSRN_NAMES, {**_UNIT, "measure": "cosine", "use_abs": False}, unsaved="captioner."),
    "scan_t2i_avg": _scan("t2i", "Mean"),
    "scan_t2i_lse": _scan("t2i", "LogSumExp"),
    "scan_i2t_avg": _scan("i2t", "Mean"),
    "scan_i2t_lse": _scan("i2t", "LogSumExp"),
    "bfan_equal": AuthorsLayout(_FRAGMENT_NAMES, {**_FRAGMENTS, "focal_type": "equal"}, _SMOOTH),
    "bfan_prob": AuthorsLayout(_FRAGMENT_NAMES, {**_FRAGMENTS, "focal_type": "prob"}, _SMOOTH),
    "sgr": AuthorsLayout(_SGRAF_NAMES, {**_FRAGMENTS, "module_name": "SGR"}, parts=_WITH_HEAD),
    "saf": AuthorsLayout(_SGRAF_NAMES, {**_FRAGMENTS, "module_name": "SAF"}, parts=_WITH_HEAD),
    "camp": _camp("gate_fusion_new"),
    "camp_stage1": _camp("cross_attention_new"),
    "imram_text": _imram("text_IMRAM", unused="i2t"),
    "imram_image": _imram("image_IMRAM", unused="t2i"),
    "imram": _imram("full_IMRAM"),
    "naaf": AuthorsLayout(_NAAF_NAMES, _UNIT, {**_NAAF_OPTIONS, **_SMOOTH}, unsaved="head.thresholds."),
}
