"""The manifest of an index in a folder: what the index is, and which of its files count."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selhn.base.errors import Damaged
from selhn.base.version import __version__
from selhn.search.stores.checked_files import read_checked_json
from selhn.search.stores.snapshot import Snapshot
from selhn.search.stores.vectors import DTYPES

FORMAT, VERSION = "selhn-index", 2
MANIFEST = "manifest.json"

_MANIFEST_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "format": str, "version": int, "selhn": str, "generation": int, "model": dict, "width": int,
    "precision": str, "about": dict, "unfinished": (str, type(None)), "next": int, "segments": list,
    "approximate": list,
}  # fmt: skip
_MODEL_FIELDS = {"digest": str, "name": str, "kept": bool}
_SEGMENT_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "name": str,
    "items": int,
    "texts": int,
    "files": dict,
    "deleted": (list, type(None)),
}
_APPROXIMATE_FIELDS = {"file": str, "kind": str, "side": str, "parts": int, "written": list}


class OtherVersion(Damaged):
    """An index that another version of selhn wrote."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder; every field has the type that was written."""
    if not (folder / MANIFEST).is_file():
        raise Damaged(f"it has no {MANIFEST}")
    content = read_checked_json(folder / MANIFEST)
    _require(content, _MANIFEST_FIELDS)
    if content["format"] != FORMAT or content["version"] != VERSION:
        raise OtherVersion(
            f"{folder} has version {content['version']} of {content['format']} (selhn {content['selhn']}), "
            f"this selhn reads version {VERSION}: install another selhn, or remove it and build it again"
        )
    if content["precision"] not in DTYPES:
        raise Damaged(f"it has vectors in {content['precision']!r}")
    _require(content["model"], _MODEL_FIELDS)
    for entry in content["segments"]:
        _require(entry, _SEGMENT_FIELDS)
        require_plain(entry["name"])
    for entry in content["approximate"]:
        _require(entry, _APPROXIMATE_FIELDS)
        require_plain(entry["file"])
    return content


def manifest_of(snapshot: Snapshot) -> dict[str, Any]:
    """The manifest of a snapshot whose files are written."""
    identity = snapshot.identity
    return {
        "format": FORMAT,
        "version": VERSION,
        "selhn": __version__,
        "generation": snapshot.generation,
        "born": snapshot.born,
        "model": {"digest": identity.model, "name": identity.model_name, "kept": snapshot.model_kept},
        "width": identity.width,
        "precision": identity.precision,
        "about": dict(identity.about),
        "unfinished": snapshot.unfinished,
        "next": snapshot.next_name,
        "segments": [dict(part.entry) for part in snapshot.parts],
        "approximate": [one.entry for one in snapshot.candidates.values()],
    }


def _require(content: Any, fields: Mapping[str, type | tuple[type, ...]]) -> None:
    for name, kind in fields.items():
        if not isinstance(content, dict) or not isinstance(content.get(name), kind):
            raise Damaged(f"{MANIFEST} has no {name!r} that could have been written")


def require_plain(name: Any) -> str:
    """Refuse the name of a file that could lead out of its folder."""
    if not isinstance(name, str) or not name or Path(name).name != name or name.startswith("."):
        raise Damaged(f"it names the file {name!r}")
    return name
