"""Which files of an index may be opened: those in folders that the user named on this machine.

An index says where its pictures are, but it may come from someone else. So the folders that a user named, as by
`selhn index FOLDER`, are kept outside of it, in one file of the user. They belong to a path and to the index that was
there: another index at that path has none, and neither has one that was moved.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.files import private_folder, write_whole, writing
from selhn.base.untrusted import read_json
from selhn.pictures.picture_files import PACKAGES, SUFFIXES
from selhn.pictures.picture_folders import indexed_folders, locate
from selhn.pictures.plans import picture_facts
from selhn.search import Hit, Index, Record
from selhn.search.items import whole

FILE, LOCK, PATIENCE = "folders.json", "folders.lock", 10.0
"""The file, its lock, and how many seconds another process may hold that."""
OFFERED = 10
"""Most folders that a question names."""
AS_INDEXED = ("modified", "bytes")


def named_file(folders: Sequence[Path], item: Record | Hit, is_ours: bool = False) -> Path | None:
    """The file of an item, with links followed, if it may be opened; nothing outside the folders is even looked up.

    It has to be a picture or a video by its name, with the size and time of change that were indexed. A link that was
    indexed may lead out of the folders. With `is_ours` the index was made by this program, and may lack size and time.
    """
    name = whole(item.id)
    path = locate(folders, name)
    if path is None:
        path, is_ours = _end_of_link(folders, Path(name)), False
    if path is None or not {Path(name).suffix.lower(), path.suffix.lower()} <= SUFFIXES | PACKAGES.keys():
        return None
    now, then = picture_facts(path, path.parent), item.metadata
    known = [key for key in AS_INDEXED if key in then] if is_ours else AS_INDEXED
    return path if now and all(then.get(key) == now[key] for key in known) else None


def _end_of_link(folders: Sequence[Path], link: Path) -> Path | None:
    """Where a link in one of the folders leads to; None if it is not a link to a file."""
    with suppress(OSError, ValueError, RuntimeError):  # a name that no file has; links in a circle
        inside = ".." not in link.parts and any(map(link.is_relative_to, folders))
        if inside and link.is_symlink() and any(map(link.parent.resolve().is_relative_to, folders)):
            end = link.resolve(strict=True)
            return end if end.is_file() else None
    return None


def named_folders(index: Index) -> tuple[Path, ...]:
    """The folders that were named for an index; those of an index in memory, which this process has made."""
    return tuple(indexed_folders(index)) if index.path is None else named_for(index.path, index.store.born)


def named_for(path: Path | str, born: str) -> tuple[Path, ...]:
    """The folders that were named for the index `born` at a path."""
    return tuple(map(Path, _read().get(_place(path), {}).get(born, ())))


def name_folders(index: Index, folders: Iterable[Path]) -> None:
    """Note that the user has named folders for an index."""
    if index.path is not None:
        name_for(index.path, index.store.born, folders)


def name_for(path: Path | str, born: str, folders: Iterable[Path]) -> None:
    """Note that the user has named folders for the index `born`, which is or will be at a path."""
    wanted = [folder.resolve() for folder in folders]
    if not set(wanted).difference(named_for(path, born)):
        return
    state = state_folder()
    try:
        private_folder(state)
        with writing(state, wait=PATIENCE, name=LOCK):
            every = _read()
            of_path = every.setdefault(_place(path), {})
            of_path[born] = list(dict.fromkeys([*of_path.get(born, ()), *map(str, wanted)]))
            write_whole(state / FILE, json.dumps(every, indent=1), private=True)
    except OSError as error:
        raise SelhnError(
            f"{state / FILE} cannot be written ({error.strerror}), which says whose pictures may be shown: "
            "set XDG_STATE_HOME to a folder that can"
        ) from None


def state_folder() -> Path:
    """The user's folder for what was decided on this machine, and must not be lost."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "selhn"


def _place(path: Path | str) -> str:
    """How an index is called in the file; the address of a server may hold a password."""
    return (
        sha256(str(path).encode()).hexdigest() if "://" in str(path) else str(Path(path).absolute().resolve())
    )


def _read() -> dict[str, dict[str, list[str]]]:
    path = state_folder() / FILE
    every = read_json(path, optional=True)
    for of_path in every.values():
        named = list(of_path.values()) if isinstance(of_path, dict) else [None]
        if not all(isinstance(some, list) and all(map(_is_path, some)) for some in named):
            raise Damaged(f"{path} is damaged: remove it, and name your folders again")
    return every


def _is_path(name: object) -> bool:
    try:
        return isinstance(name, str) and b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:  # half a letter
        return False


def require_folders(folders: Iterable[Path]) -> list[Path]:
    """The folders of `--folder`, which must exist."""
    found = [folder.expanduser().resolve() for folder in folders]
    for folder in found:
        if not folder.is_dir():
            raise NotFound(f"--folder {folder}: there is no such folder: name one that holds the pictures")
    return found


def offer_folders(
    index: Index,
    command: str,
    option: str = "--folder ",
    more: Iterable[Path] = (),
    ask: Callable[[str], str] | None = None,
) -> None:
    """Tell the user which folders an index names that were not named here: one question on a terminal, else a sentence.

    Args:
        command: what allows them, with {index} and {folders}, each of which follows `option`.
        more: folders that a former index at this path names.
        ask: by default a question on the terminal, if there is one.
    """
    known, every = named_folders(index), dict.fromkeys([*indexed_folders(index), *more])
    unknown = [folder for folder in every if not any(map(folder.is_relative_to, known))]
    # Letters that cannot be printed may rewrite what is on the terminal.
    plain = [folder for folder in unknown if str(folder).isprintable()][:OFFERED]
    if not plain:
        return
    if ask is None and sys.stdin.isatty() and sys.stderr.isatty():
        ask = _asked
    others = f" and {len(unknown) - len(plain):,} other folders" if len(unknown) > len(plain) else ""
    words = f"selhn: {index.location} was made elsewhere or by an older version, or was moved. "
    words += f"It names pictures in {', '.join(map(str, plain))}{others}. "
    if ask is None:
        folders = " ".join(option + shlex.quote(str(folder)) for folder in plain)
        place = shlex.quote(index.location) if isinstance(index.path, Path) else f"--uri {index.location}"
        words += "It can be searched, but no file there is opened. To show its pictures: "
        print(words + command.format(index=place, folders=folders), file=sys.stderr, flush=True)
    elif ask(f"{words}\nShow these pictures? [y/N] ").strip().lower() in ("y", "yes"):
        name_folders(index, [folder for folder in plain if folder.resolve() == folder])  # no planted link


def _asked(words: str) -> str:
    print(words, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline()
