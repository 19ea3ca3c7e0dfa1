"""Opening towers by the name of a folder, of the shipped ones, or of a model."""

from pathlib import Path

from selhn.base.errors import NotFound, SelhnError
from selhn.base.names import HIGHER, NAMED_TOWERS, named_object
from selhn.towers.base import AbstractTowers
from selhn.towers.description import DESCRIPTION_FILE
from selhn.towers.towers import Towers


def open_towers(path: Path | str) -> AbstractTowers:
    """Towers, ready to be used.

    Args:
        path: a folder that `selhn export towers` wrote; "ready", the shipped ones; or, with torch, what `load_model`
            takes: a saved model, a run, or both towers of another library, "transformers:NAME", which that library may
            download.
    """
    if not isinstance(path, str | Path):
        raise SelhnError(
            f"path must be a name or a folder, got {type(path).__name__}: for a model of torch, towers_of(model)"
        )
    folder = Path(path).expanduser()
    if (folder / DESCRIPTION_FILE).is_file():
        return Towers.open(folder)
    if not folder.exists() and str(path) in NAMED_TOWERS:
        return named_object(NAMED_TOWERS[str(path)])(str(path))
    if not folder.exists() and ":" not in str(path):
        raise NotFound(
            f"{path} does not exist: name a towers folder, a run, a saved model, {', '.join(NAMED_TOWERS)} or "
            "transformers:FOLDER"
        )
    return named_object(HIGHER["model"])(path)


def open_towers_named_in_file(name: object) -> AbstractTowers | None:
    """The towers that a file names, if they are on this machine (no download); None for other names."""
    if not isinstance(name, str):
        return None
    if name in NAMED_TOWERS:
        return named_object(NAMED_TOWERS[name])(name)
    return named_object(HIGHER["model in a file"])(name)
