"""Checkpoints of the authors' public code, read into our models; a row of `MODELS` has the layout of each.

A file is opened by `read_checkpoint`, which runs no code out of it.
"""

import inspect
import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.names import did_you_mean
from selhn.base.tensor_files import check_fits, check_sizes, read_checkpoint
from selhn.models import MODELS, AbstractMatcher, create_model
from selhn.models.layouts import AXES, BERT_AXES, AuthorsLayout, Axes
from selhn.ops.bert import bert_config, bert_weights

MOST_SPARED = 2**28
"""Weights that a model may have beyond those in the file, which may hold only one side."""

State = dict[str, Tensor]
Settings = dict[str, Any]

_BERT = "text.words.bert."


def load_official(
    name: str, source: Path | str | Mapping[str, Tensor | np.ndarray], **settings: Any
) -> AbstractMatcher:
    """A model in evaluation mode with the authors' weights.

    `source` is their .pth file, or a flat state dict with their names behind the prefixes `img_enc.` and
    `txt_enc.`. Sizes are read from the shapes, settings default to the authors' values, and their names for
    them are understood (`no_imgnorm=True`). Every weight must find its place, with two exceptions: a state
    dict of one side only gives a model that encodes that side, and with `bert=` the BERT may be left out.
    """
    layout = MODELS[name].official if name in MODELS else None
    if layout is None:
        raise NotFound(f"no public weights are known for {name!r}: {did_you_mean(name, _with_layout())}")
    if isinstance(source, (str, Path)):
        where = str(source)
        state, options = _weights_and_options(Path(source), layout.parts)
    else:
        where, state, options = "the state dict", _flat(source), {}
    # A setting that neither the authors nor we have is refused by `create_model`.
    options.update({key: settings.pop(key) for key in (*layout.fixed, *layout.options) if key in settings})
    own_bert, sizes = settings.get("bert"), _sizes(name, layout, state)
    if isinstance(own_bert, Mapping) and "bert" in sizes:  # a few values add to what the shapes tell
        settings["bert"] = {**sizes["bert"], **own_bert}
    own = {**sizes, **layout.ours, **_our_settings(name, layout, options), **settings}
    shapes = {**own, "bert": bert_config(own["bert"])} if isinstance(own.get("bert"), (str, Path)) else own
    with torch.device("meta"):  # built without memory until the weights are known to fit
        outline = create_model(name, **shapes)
    found, absent = _renamed(outline, state, layout, where, "bert" in settings)
    for weight, setting in layout.needed.items():
        if weight not in found and settings.get(setting) is None:
            raise SelhnError(
                f"{where} lacks {setting}, which the authors keep in a file of its own: pass {setting}="
            )
    model = create_model(name, **own)
    model.load_state_dict({**model.state_dict(), **found})
    if absent:
        # Random weights would give answers that look real.
        model.register_module(absent, _Absent())
        model.name = None
    return model.eval()


def _with_layout() -> list[str]:
    return [name for name, entry in MODELS.items() if entry.official is not None]


def _renamed(
    outline: AbstractMatcher, state: State, layout: AuthorsLayout, where: str, own_bert: bool
) -> tuple[State, str | None]:
    """The weights under our names, checked to fit, and the side of the model that is missing."""
    wanted = outline.state_dict()
    found = {}
    for key, value in state.items():
        for pattern, replacement in layout.names:
            key = re.sub(pattern, replacement, key)
        if not key:
            continue
        # A convolution over single places is a matrix.
        flat = key in wanted and value.ndim == wanted[key].ndim + 1 and value.shape[-1] == 1
        found[key] = value[..., 0] if flat else value
    bert = bert_weights(
        {key.removeprefix(_BERT): found.pop(key) for key in list(found) if key.startswith(_BERT)}
    )
    found.update({_BERT + key: value for key, value in bert.items()})
    sides = [side for side in ("image.", "text.") if not any(key.startswith(side) for key in found)]
    absent = sides[0] if layout.one_side and len(sides) == 1 else None
    unsaved = (*layout.unsaved, absent) if absent else layout.unsaved
    spared = [key for key in wanted if key.startswith(unsaved) or (own_bert and not bert and _BERT in key)]
    check_fits({key: value for key, value in wanted.items() if key not in spared}, found, where)
    if sum(wanted[key].numel() for key in spared) > MOST_SPARED:
        raise SelhnError(
            f"{where} has weights so large that those it lacks take too much memory: load both sides"
        )
    return found, absent and absent.removesuffix(".")


class _Absent(nn.Module):
    """Placeholder for an encoder without weights."""

    def forward(self, *inputs: Any) -> Any:
        raise SelhnError("the weights this model was made from had no such encoder: load both sides")


def _weights_and_options(path: Path, parts: tuple[str, ...]) -> tuple[State, Settings]:
    """Weights and options of a file such as `model_best.pth.tar`."""
    content = read_checkpoint(path, [Namespace])  # the authors' programs store their command line in it
    options = content.get("opt") if isinstance(content, dict) else None
    content = content.get("model", content) if isinstance(content, dict) else content
    several = isinstance(content, (list, tuple)) and all(isinstance(state, Mapping) for state in content)
    if several and len(content) == len(parts):
        content = {part + key: value for part, state in zip(parts, content) for key, value in state.items()}
    if not isinstance(content, Mapping):
        raise Damaged(
            f"{path} has no list of {len(parts)} state dicts under 'model', as the authors write it"
        )
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
        re.sub(r"(^|\.)module\.", r"\1", key): value
        if isinstance(value, Tensor)
        else torch.from_numpy(np.array(value))
        for key, value in state.items()
    }


def _sizes(name: str, layout: AuthorsLayout, state: State) -> Settings:
    """Settings of the model from the shapes; missing weights are reported later, all together."""
    config = _lengths(state, BERT_AXES)
    layers = {key.split(".")[4] for key in state if key.startswith("txt_enc.bert.encoder.layer.")}
    config["num_hidden_layers"] = len(layers)
    # The shapes do not tell the number of heads; a head of BERT is 64 wide.
    config["num_attention_heads"] = max(1, config.get("hidden_size", 64) // 64)
    sizes: Settings = {"vocab_size": 1, **_lengths(state, [*AXES, *layout.axes]), "bert": config}
    sizes |= {setting: weight in state for setting, weight in layout.present.items()}
    for setting, part in layout.numbered.items():
        if several := {found[0] for key in state if (found := re.match(part, key))}:
            sizes[setting] = len(several)
    known = inspect.signature(MODELS[name].build).parameters
    return {setting: size for setting, size in sizes.items() if setting in known}


def _lengths(state: State, axes: Axes) -> dict[str, int]:
    return {
        name: state[key].shape[axis] for name, key, axis in axes if key in state and axis < state[key].ndim
    }


def _our_settings(name: str, layout: AuthorsLayout, options: Settings) -> Settings:
    """Options of their programs as our settings; an option that means another model is an error."""
    for option in (*layout.fixed, *layout.options):
        if not isinstance(options.get(option), str | int | float | None):
            raise SelhnError(
                f"option {option} of these weights is a {type(options[option]).__name__}, not a number or a "
                "word: download them again"
            )
    for option, value in layout.fixed.items():
        if options.get(option, value) != value:
            raise SelhnError(
                f"these weights were trained with {option}={options[option]!r}; {name} has {value!r} there: "
                f"load them as another model, if there is one ({', '.join(_with_layout())})"
            )
    given = {theirs: options[theirs] for theirs in layout.options if options.get(theirs) is not None}
    try:
        return {
            layout.options[theirs][0]: layout.options[theirs][1](value) for theirs, value in given.items()
        }
    except (ValueError, OverflowError) as error:
        raise SelhnError(
            f"an option of these weights is not a number ({error}): pass it as a setting"
        ) from None
