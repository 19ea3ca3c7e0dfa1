"""Checksums (SHA-256): folders and small files are sealed when written and verified when loaded."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from selhn.base.errors import Damaged
from selhn.base.files import sync_file, write_whole
from selhn.base.untrusted import read_json, read_text

CHECKSUMS_FILE = "checksums.json"
FORMAT = 2
"""Format of folders and files with checksums. Format 1, or none, was written before there were checksums."""
_OWN_CHECKSUM = "sha256"
_FIRST_LINE = "# sha256 of the lines below: "


def seal(folder: Path, names: Iterable[str]) -> None:
    """Flush the named files that exist in a folder to the disk, and write their checksums."""
    found = [name for name in names if (folder / name).exists()]
    for name in found:
        sync_file(folder / name)
    text = json.dumps(
        {"format": FORMAT, _OWN_CHECKSUM: {name: digest_file(folder / name) for name in found}}, indent=1
    )
    write_whole(folder / CHECKSUMS_FILE, f"{text}\n")


def verify(folder: Path, names: Iterable[str], what_to_do: str, required: bool = True) -> None:
    """Refuse a folder if one of the named files is not what was written. Reads all of them.

    Without `required`, a folder without checksums passes: older versions wrote none.
    """
    path = folder / CHECKSUMS_FILE
    if not path.exists():
        if required:
            raise Damaged(f"{path} is missing, so nothing in the folder can be verified: {what_to_do}")
        return
    known = read_json(path).get(_OWN_CHECKSUM)
    if not isinstance(known, dict):
        raise Damaged(f"{path} holds no checksums: {what_to_do}")
    for name in names:
        file = folder / name
        if name in known and not file.is_file():
            raise Damaged(f"{file} is missing: {what_to_do}")
        if (name in known or file.exists()) and known.get(name) != digest_file(file):
            raise Damaged(f"{file} is not what was written (its checksum differs): {what_to_do}")


def write_sealed_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file; the new one includes its own checksum."""
    content = {**content, "format": FORMAT}
    text = json.dumps({**content, _OWN_CHECKSUM: _digest_of(content)}, indent=1)
    write_whole(path, f"{text}\n")


def read_sealed_json(path: Path, what_to_do: str) -> dict[str, Any]:
    """What `write_sealed_json` wrote. A file without a format is older and is not checked."""
    content = read_json(path, what_to_do=what_to_do)
    known = content.pop(_OWN_CHECKSUM, None)
    if (known is not None or content.get("format", 1) != 1) and known != _digest_of(content):
        raise Damaged(f"{path} is not what was written (its checksum differs): {what_to_do}")
    content.pop("format", None)
    return content


def write_sealed_text(path: Path, text: str) -> None:
    """Replace a text file in which lines starting with # are comments; its first line is its checksum."""
    write_whole(path, f"{_FIRST_LINE}{hashlib.sha256(text.encode()).hexdigest()}\n{text}")


def read_sealed_text(path: Path, what_to_do: str) -> str:
    """What `write_sealed_text` wrote. If its first line was removed (edited by hand), it is not checked."""
    first, _, text = (whole := read_text(path)).partition("\n")
    if _FIRST_LINE[2:] not in first:
        return whole
    if first.removeprefix(_FIRST_LINE).strip() != hashlib.sha256(text.encode()).hexdigest():
        raise Damaged(
            f"{path} is not what was written (its checksum differs): {what_to_do}; "
            "if you changed it yourself, remove its first line"
        )
    return text


def digest_file(path: Path, size: int = 2**62) -> str:
    """The SHA-256 of a file, or of its first `size` bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(min(2**20, size)):
            digest.update(chunk)
            size -= len(chunk)
    return digest.hexdigest()


def _digest_of(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
