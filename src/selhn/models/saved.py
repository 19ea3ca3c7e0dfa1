"""A model on disk: config.json, model.safetensors, the tokenizer's file, and a README.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.files import refuse_links
from selhn.base.folders import new_folder, whole_folder
from selhn.base.names import NAMED_MODELS
from selhn.base.sealed import CHECKSUMS_FILE, FORMAT, seal, verify
from selhn.base.untrusted import read_json
from selhn.base.version import __version__
from selhn.text import TOKENIZER_FILES, Tokenizer

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"
BEST_FOLDER = "best"
"""Where a run keeps the model of its best epoch."""
_SEALED = (CONFIG_FILE, WEIGHTS_FILE, *TOKENIZER_FILES)  # without the card, which people may edit
OURS = {*_SEALED, CARD_FILE, CHECKSUMS_FILE}
"""All that a saved model consists of."""


def write_folder(
    out: Path,
    name: str,
    settings: Mapping[str, Any],
    state: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
) -> None:
    """Write a model next to `out`, and move it there when it is complete."""
    out = out.absolute()
    if out.exists() and not out.is_dir():
        raise SelhnError(f"{out} is a file: a model is saved as a folder, give another name")
    foreign = sorted({path.name for path in out.iterdir()} - OURS) if out.is_dir() else []
    if foreign and not all((out / file).is_file() for file in (CONFIG_FILE, WEIGHTS_FILE)):
        raise SelhnError(
            f"{out} holds {foreign[0]!r}, which is not part of a model: save into a folder of its own"
        )
    config = {
        "format": FORMAT,
        "name": name,
        "settings": dict(settings),
        "versions": {"selhn": __version__, "torch": str(torch.__version__)},
    }
    try:
        with new_folder(out, replace=OURS) as partial:
            # Copy each: safetensors refuses views of one storage.
            weights = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in state.items()}
            save_file(weights, partial / WEIGHTS_FILE)
            (partial / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            (partial / CARD_FILE).write_text(_card(name, settings, state, tokenizer), encoding="utf-8")
            if tokenizer is not None:
                tokenizer.save(partial)
            seal(partial, _SEALED)
            # safetensors makes its file readable for the owner alone; a model is for all who read the folder.
            (partial / WEIGHTS_FILE).chmod((partial / CONFIG_FILE).stat().st_mode)
    except SafetensorError as error:  # how safetensors reports a full disk
        raise OSError(f"{out} could not be written ({error}); what was there before is untouched") from None


def find_folder(path: Path) -> Path:
    """The folder of the model that a path names: a saved model itself, or the best epoch of a run."""
    refuse_links(path, [BEST_FOLDER], deep=False)
    path, best = whole_folder(path), whole_folder(path / BEST_FOLDER)
    if not path.exists():
        raise NotFound(f"{path} does not exist: name a saved model, a run, or {' or '.join(NAMED_MODELS)}")
    if path.is_file():
        raise NotFound(
            f"{path} is a file, and a saved model or a run is a folder; weights of an authors' program are read by "
            f"selhn.models.official.load_official(NAME, {str(path)!r}), with NAME such as 'vsepp' or 'scan_t2i_avg'"
        )
    if (best / CONFIG_FILE).is_file():
        return best
    if best.is_dir():
        raise NotFound(
            f"{best} has no {CONFIG_FILE}, as for a model of your own that is not registered: "
            f"build it and load {WEIGHTS_FILE} yourself, or train it under a name (register_model)"
        )
    if (path / "checkpoints").is_dir():
        raise NotFound(f"{path} has not finished its first epoch: continue with selhn train --resume {path}")
    if not (path / CONFIG_FILE).is_file():
        raise NotFound(
            f"{path} is not a saved model: {CONFIG_FILE} is missing; name the folder of a run or of a saved model"
        )
    if not (path / WEIGHTS_FILE).is_file():
        raise NotFound(f"{path} is not a saved model: {WEIGHTS_FILE} is missing; copy the whole folder")
    return path


def read_model_config(folder: Path) -> dict[str, Any]:
    """Name and settings of a saved model; all its files are verified, and none may be a link."""
    refuse_links(folder, OURS)
    config = read_json(folder / CONFIG_FILE)
    kinds = {"format": int, "name": str, "settings": dict}
    if not all(isinstance(config.get(key), kind) for key, kind in kinds.items()):
        raise Damaged(f"{folder / CONFIG_FILE} was not written by selhn: it has no format, name and settings")
    if config["format"] not in (1, FORMAT):
        raise Damaged(
            f"{folder} has format {config['format']}, this selhn reads {FORMAT}: install a newer selhn"
        )
    verify(
        folder, _SEALED, "copy the folder again, or save the model again", required=config["format"] == FORMAT
    )
    return config


def _card(
    name: str, settings: Mapping[str, Any], state: Mapping[str, Tensor], tokenizer: Tokenizer | None
) -> str:
    shown = "\n".join(
        f"- {key}: {value}" for key, value in settings.items() if not isinstance(value, Mapping)
    )
    words = "no tokenizer" if tokenizer is None else f"{type(tokenizer).__name__} of {tokenizer.size} tokens"
    return f"""# {name}

An image-text matching model saved by selhn {__version__}: {sum(x.numel() for x in state.values()):,} numbers, {words}.

```python
import selhn
model = selhn.load_model("this/folder")
```

Settings:

{shown}
"""
