"""Uploaded pictures: files in a separate folder, named by a digest of their content."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from selhn.base.files import refuse_links, write_whole
from selhn.pictures.cache import content_key

UPLOADS = "uploads"
"""Folder below the first one of a library."""


@contextmanager
def uploaded(root: Path, content: bytes, kind: str) -> Iterator[Path]:
    """The file of a picture; `kind`: its format in Pillow. A new file is removed if the block fails."""
    suffix = {"JPEG": "jpg", "MPO": "jpg"}.get(kind, kind.lower())
    path = root / UPLOADS / f"{_name(content)}.{suffix}"
    refuse_links(root, [UPLOADS, f"{UPLOADS}/{path.name}"], deep=False)
    path.parent.mkdir(exist_ok=True)
    is_new = not path.exists()
    try:
        if is_new or path.read_bytes() != content:  # an older version may have left a part of it
            write_whole(path, content)
        yield path
    except BaseException:
        if is_new:
            path.unlink(missing_ok=True)
        raise


def is_upload(path: Path, folders: Sequence[Path]) -> bool:
    """Whether `uploaded` wrote a file: people may keep their own files in that folder, under other names."""
    return path.parent in [folder / UPLOADS for folder in folders] and path.stem == _name(path.read_bytes())


def _name(content: bytes) -> str:
    return content_key(content).hex()[:24]
