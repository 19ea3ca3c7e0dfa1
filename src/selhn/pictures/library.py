"""A library of pictures: index, extractor and folders together."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image

from selhn.base.errors import NotFound, Outdated, SelhnError
from selhn.base.types import StoredPrecision
from selhn.pictures.applying import carry_out
from selhn.pictures.backbones import is_foreign
from selhn.pictures.decoding import MOST_PIXELS, Picture, decode_picture
from selhn.pictures.extractor import Extractor
from selhn.pictures.facts import FACTS
from selhn.pictures.named_folders import name_folders, named_file, named_folders
from selhn.pictures.picture_files import Found, drawn, find_pictures, picture_source
from selhn.pictures.picture_folders import located_source, picture_id
from selhn.pictures.plans import WRITTEN_BY_INDEXING, Indexed, Plan, make_plan, picture_facts
from selhn.pictures.removed import Removed
from selhn.pictures.uploads import is_upload, uploaded
from selhn.search import Hit, Index, Item, Query, Record
from selhn.search.encoding import require_towers
from selhn.search.items import moment_ids, seconds_of, whole
from selhn.towers import AbstractTowers, open_towers
from selhn.towers.ready import READY

TEXT_WEIGHT = 2.0
"""Weight of a sentence beside a picture: pictures are usually closer to each other than to sentences."""


class Library:
    """An index of pictures with the towers that make their vectors and the folders that hold them.

    Example:
        library = Library.open("photos.index")
        plan = library.plan(library.scan("~/Pictures"))
        print(plan)
        library.apply(plan)

    Args:
        extractor: for towers that take regions, what turns pictures into these: by default the one that the index
            names, loaded when it is first needed. If that is a model of another library, which may be downloaded, it
            has to be given: the extractor, or its name.
        folders: by default those that the user named on this machine, see `named_folders`: as `apply` does, and
            `selhn index FOLDER`.
        name: for people; by default that of the folder, or of the index.
    """

    def __init__(
        self,
        index: Index,
        extractor: Extractor | str | None = None,
        folders: Sequence[Path] | None = None,
        name: str = "",
        device: torch.device | str = "cpu",
    ):
        self.index, self.device = index, device
        self._given, self._folders, self._name = extractor, folders, name

    @classmethod
    def open(
        cls,
        path: Path | str,
        towers: AbstractTowers | None = None,
        device: torch.device | str = "cpu",
        extractor: Extractor | str | None = None,
    ) -> "Library":
        """The library of an existing index; give `towers` if the index neither holds nor names some."""
        if not Index.exists(path):
            if Path(path).is_dir():
                raise NotFound(
                    f"{path} is a folder, but not an index: to search the pictures in it, `selhn photos {path}`"
                )
            raise NotFound(f"there is no index {path}: make one with `selhn index ~/Pictures`")
        return cls(Index.load(path, towers).to(device), extractor, device=device)

    @classmethod
    def create(
        cls,
        path: Path | str | None,
        towers: AbstractTowers | None = None,
        extractor: str | Extractor | None = None,
        precision: StoredPrecision = "float32",
        device: torch.device | str = "cpu",
    ) -> "Library":
        """A new, empty library.

        Args:
            path: of the index, a folder or the URI of a server; None for one in memory.
            towers: by default those of the ready model, which the index then names and does not copy.
            extractor: for towers that take regions, what turns pictures into these, or a name that `load_extractor`
                takes; by default that of the ready model.
            precision: of the vectors of the index.
        """
        towers = open_towers(READY) if towers is None else towers
        require_towers(towers)
        if extractor not in (None, towers.vision) or not towers.features:
            towers = towers.with_extractor(extractor or READY, device)
        about = {"extractor": towers.vision or towers.name, "features": towers.features}
        index = Index.create(towers, path, precision=precision, about=about)
        return cls(index.to(device), extractor, device=device)

    @cached_property
    def towers(self) -> AbstractTowers | None:
        """What makes the vectors of pictures in this index, checked to be the same as before; None if it is not of
        pictures."""
        towers, made_by = self.index.towers, self.index.about.get("features")
        if not towers.features:
            name = self.index.about.get("extractor")
            if name is None:
                return None
            given = self._given if isinstance(self._given, Extractor) else self._asked(name)
            towers = towers.with_extractor(given, self.device)
        if made_by not in (None, towers.features):
            name = self.index.about.get("extractor", towers.name)
            raise (Outdated if self.index.about.get("model") == READY else SelhnError)(
                f"{self.index.location} was made with other features ({made_by}) than {name} gives now "
                f"({towers.features}): remove it and make it again with `selhn index`, or make another"
            )
        self.index.towers = towers
        return towers

    def _asked(self, name: str) -> str:
        """The name of the extractor in the index. It is only downloaded if it was also given by name."""
        if self._given not in (None, name):
            raise SelhnError(
                f"{self.index.location} was made with the extractor {name}, not with {self._given}"
            )
        if self._given is None and is_foreign(name):
            raise SelhnError(
                f"{self.index.location} names the extractor {name}, which may be downloaded, and only you can ask for "
                f"that: if you trust it, add --extractor {name}, or Library.open(path, extractor={name!r})"
            )
        return name

    @cached_property
    def folders(self) -> tuple[Path, ...]:
        """The folders with the pictures that may be opened; none if the user has named none."""
        folders = named_folders(self.index) if self._folders is None else self._folders
        return tuple(dict.fromkeys(folder.resolve() for folder in folders))

    @property
    def name(self) -> str:
        path = Path(self.index.location)
        own = self.folders[0].name if len(self.folders) == 1 else path.name.removesuffix(".index")
        return self._name or own or self.index.location

    @staticmethod
    def scan(folder: Path | str) -> Found:
        """Walk a folder once and list its pictures."""
        return find_pictures(Path(folder).expanduser().resolve())

    def plan(self, found: Found, captions: Path | str | None = None, remove_missing: bool = False) -> Plan:
        """How the index has to change to agree with a folder, see `make_plan`; nothing is changed yet."""
        return make_plan(found, self.index, captions, remove_missing)

    def apply(
        self,
        plan: Plan,
        *,
        cache: Path | None = None,
        batch_size: int = 16,
        workers: int | None = None,
        quiet: bool = False,
    ) -> Indexed:
        """Carry out a plan, see `carry_out` and `extract_pictures`. What is done before an interruption is kept."""
        towers = self._require_towers("give another path for the index")
        name_folders(self.index, [plan.folder])
        self.__dict__.pop("folders", None)  # they are read again
        return carry_out(plan, self.index, towers, cache, batch_size, workers, quiet)

    def query(self, text: str | None = None, like: str | None = None, weight: float = TEXT_WEIGHT) -> Query:
        """A query by a sentence, a picture, or both.

        Args:
            text: as people type it: in "dog -snow", snow is not wanted.
            like: the id of an item, or the file of any picture.
            weight: of the text, if there is also a picture, which counts 1.
        """
        asked = Query() if text is None else Query.minus(text)
        asked = replace(
            asked, weights={"text": weight} if asked.text is not None and like is not None else {}
        )
        if like is None or like in self.index:
            return replace(asked, like=like)
        if picture_id(like) in self.index:
            return replace(asked, like=picture_id(like))
        if not Path(whole(like)).expanduser().is_file():
            raise NotFound(f"{like} is neither an item of {self.index.location} nor a file: name one of them")
        return replace(asked, image=self.vector(like))

    def vector(self, picture: Path | str | Image.Image) -> Float[np.ndarray, " d"]:
        """The vector of a picture file or PIL image."""
        towers = self._require_towers("search with the id of an item, or with regions")
        if isinstance(picture, Image.Image):
            return towers.embed_pictures([picture.convert("RGB")])[0]
        found = decode_picture(picture_source(str(picture)), str(picture), resized=towers.resized)
        return towers.embed_pictures([found.image])[0]

    def decode(self, content: bytes, most_pixels: int = MOST_PIXELS) -> Picture:
        """The picture in the content of a file, for `add`."""
        resized = self._require_towers("it takes no pictures").resized
        return decode_picture(content, "this file", most_pixels, resized=resized)

    def prepare(self, content: bytes, most_pixels: int = MOST_PIXELS) -> Any:
        """The content of a picture file, ready for `towers.embed_prepared`."""
        towers = self._require_towers("search with a text")
        return towers.prepare(self.decode(content, most_pixels).image)

    def picture(self, name: str) -> Path | None:
        """The file of an item; None if it has none."""
        found = self.index.store.get([name]).get(name)
        return None if found is None else self.file_of(found.record)

    def file_of(self, item: Record | Hit) -> Path | None:
        """The file of an item if it may be opened, see `named_file`."""
        return named_file(self.folders, item, is_ours=self._folders is not None)

    def thumbnail(self, item: Record | Hit, size: int) -> bytes | None:
        """A JPEG of an item, at most `size` pixels long; None if its file may not be opened, or cannot be read."""
        path = self.file_of(item)
        with suppress(SelhnError, OSError):
            return None if path is None else drawn(located_source(path, seconds_of(item.id)), path.name, size)
        return None

    def add(
        self,
        content: bytes,
        most_pixels: int = MOST_PIXELS,
        captions: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        picture: Picture | None = None,
    ) -> str:
        """Store a picture in the folder and in the index; returns its id, the same for the same picture.

        `picture` is what `decode` returned for the content, if it was called before.
        """
        towers = self._require_towers("it takes no pictures")
        if not self.folders:
            raise SelhnError(
                f"no folder of pictures was named here for {self.index.location}: index one with `selhn index FOLDER`"
            )
        picture = picture or self.decode(content, most_pixels)
        prepared = towers.prepare(picture.image)
        with uploaded(self.folders[0], content, picture.format) as path:
            vector = towers.embed_prepared([prepared])[0]
            # As `selhn index` would name and describe it, so that it finds the picture unchanged.
            facts = {**picture.facts, **(metadata or {}), **picture_facts(path, self.folders[0])}
            self.index.add([Item(str(path), None, vector, tuple(captions), facts)], existing="replace")
            self.know_ids()
        return str(path)

    def change(self, name: str, captions: Sequence[str] | None, metadata: Mapping[str, Any] | None) -> None:
        """Replace captions or metadata of an item; those of a video are those of all its moments."""
        video = self.index.get(whole(name))
        given = {key: value for key, value in (metadata or {}).items() if key not in WRITTEN_BY_INDEXING}
        changed = []
        for now in (video, *map(self.index.get, moment_ids(video))):
            own = now.captions if captions is None or now is not video else tuple(captions)
            of = lambda names: {key: now.metadata[key] for key in names if key in now.metadata}  # noqa: B023, E731
            told = now.metadata if metadata is None else {**of(FACTS), **given, **of(WRITTEN_BY_INDEXING)}
            changed.append(Item(now.id, None, None, own, told))
        self.index.update(changed)
        self.know_ids()

    def delete(self, name: str) -> None:
        """Remove an item, or the video of a moment; deletes its file if `add` wrote it. Other files
        stay, and are not indexed again (see `Removed`).
        """
        path, record = self.picture(name), self.index.get(whole(name))
        is_own = path is not None and is_upload(path, self.folders)
        with self.index.writing():
            if path is not None and not is_own:
                Removed(self.index).add(record)
            self.index.delete([record.id])
        self.know_ids()
        if path is not None and is_own:
            path.unlink(missing_ok=True)

    def know_ids(self) -> bool:
        """Make an index in a folder read its ids now, in this thread, not in that of the next reader."""
        return "" in self.index

    def _require_towers(self, remedy: str) -> AbstractTowers:
        if self.towers is None:
            raise SelhnError(f"{self.index.location} was not made from pictures: {remedy}")
        return self.towers
