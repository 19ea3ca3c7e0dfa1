"""A folder of embeddings in shards: what each is made from, which are written, and their checksums.

manifest.json                what makes the vectors, and the checksum of the list of each shard; written once, at first
inputs/inputs_0.jsonl        what a shard is made from, one JSON object per line
done/done_0.json             size and checksum of every file of a shard; written last
left_out/left_out_0.jsonl    what could not be read, and why
img_emb, text_emb, metadata  see `selhn.search.embedded`; a shard without a readable picture has no such files
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.files import refuse_links, sync_file, write_whole
from selhn.base.progress import Progress
from selhn.base.sealed import digest_file, read_sealed_json, write_sealed_json
from selhn.base.types import StoredPrecision
from selhn.base.untrusted import read_json_lines
from selhn.search.embedded import IMAGES, METADATA, EmbeddedRow, read_rows, shard_files, write_rows
from selhn.search.index import Index
from selhn.search.items import Item
from selhn.search.stores.store import Identity
from selhn.towers import AbstractTowers, open_towers_named_in_file

MANIFEST_FILE, PARTIAL = "manifest.json", ".partial"
AGAIN = "run the `selhn embed` command again; only what is missing or damaged is made again"
_NEW = "remove the folder and embed again"


class ShardDone(NamedTuple):
    """How many pictures of a shard are embedded, and how many could not be read."""

    rows: int
    left_out: int


@dataclass(frozen=True)
class Shards:
    """The embeddings of a collection, in shards that are written one by one, by one process or several."""

    folder: Path
    identity: Identity
    about: Mapping[str, Any]
    """The settings with which the shards were planned."""
    pictures: int
    inputs: Sequence[str]
    """Checksum of the list of each shard."""

    def __len__(self) -> int:
        return len(self.inputs)

    @staticmethod
    def exist(folder: Path) -> bool:
        return (folder / MANIFEST_FILE).is_file() and (folder / "inputs").is_dir()

    @classmethod
    def plan(
        cls,
        folder: Path,
        identity: Identity,
        about: Mapping[str, Any],
        shards: Iterable[Sequence[Mapping[str, Any]]],
    ) -> "Shards":
        """Write the inputs of all shards, then the manifest. Until then, it is not a folder of shards.

        An entry is for one picture, or for as many as its "rows".
        """
        digests, pictures = [], 0
        (folder / "inputs").mkdir(parents=True, exist_ok=True)
        for number, entries in enumerate(shards):
            text = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
            write_whole(folder / "inputs" / f"inputs_{number}.jsonl", text)
            digests.append(hashlib.sha256(text).hexdigest())
            pictures += sum(entry.get("rows", 1) for entry in entries)
        if pictures == 0:
            raise SelhnError("there are no pictures to embed: the list is empty")
        content = {
            "kind": "embeddings",
            "identity": asdict(identity),
            "about": dict(about),
            "pictures": pictures,
        }
        write_sealed_json(folder / MANIFEST_FILE, {**content, "inputs": digests})
        return cls(folder, identity, about, pictures, digests)

    @classmethod
    def open(cls, folder: Path) -> "Shards":
        """Open what `plan` has written."""
        if not cls.exist(folder):
            raise NotFound(
                f"{folder} holds no embeddings of `selhn embed`: name a folder with a {MANIFEST_FILE}"
            )
        refuse_links(folder)
        content = read_sealed_json(folder / MANIFEST_FILE, _NEW)
        identity, inputs = content.get("identity"), content.get("inputs")
        kinds = {"model": str, "model_name": str, "width": int, "precision": str, "about": dict}
        if (
            content.get("kind") != "embeddings"
            or type(content.get("pictures")) is not int
            or not isinstance(content.get("about"), dict)
            or not isinstance(identity, dict)
            or {name: type(value) for name, value in identity.items()} != kinds
            or not isinstance(inputs, list)
            or not all(isinstance(digest, str) for digest in inputs)
        ):
            raise Damaged(f"{folder / MANIFEST_FILE} is not a manifest of embeddings: {_NEW}")
        return cls(folder, Identity(**identity), content["about"], content["pictures"], inputs)

    def entries(self, number: int) -> list[dict[str, Any]]:
        """What a shard is made from."""
        path = self.folder / "inputs" / f"inputs_{number}.jsonl"
        if not path.is_file() or digest_file(path) != self.inputs[number]:
            raise Damaged(f"{path} is missing or not what was written: {_NEW}")
        return read_json_lines(path)

    def write(
        self, number: int, rows: Sequence[EmbeddedRow], left_out: Sequence[tuple[str, str]]
    ) -> ShardDone:
        """Write a shard. Files get their names when all are on the disk; their record is written last."""
        workshop = self.folder / PARTIAL
        workshop.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=workshop))
        try:
            names = write_rows(rows, partial, shard_files(number, len(self))) if rows else []
            if left_out:
                names.append(_left_out(number))
                lines = (
                    json.dumps({"picture": name, "reason": why}, ensure_ascii=False) for name, why in left_out
                )
                (partial / "left_out").mkdir()
                (partial / names[-1]).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            files = {}
            for name in names:
                sync_file(partial / name)
                files[name] = [(partial / name).stat().st_size, digest_file(partial / name)]
                (self.folder / name).parent.mkdir(exist_ok=True)
                os.replace(partial / name, self.folder / name)
            (self.folder / "done").mkdir(exist_ok=True)
            content = {
                "rows": len(rows),
                "left out": len(left_out),
                "inputs": self.inputs[number],
                "files": files,
            }
            write_sealed_json(self._record(number), content)
        except OSError as error:
            raise OSError(
                f"shard {number} of {self.folder} could not be written ({error.strerror or error}): what is done is "
                "kept; free some space, and run the same command again"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return ShardDone(len(rows), len(left_out))

    def done(self, number: int) -> ShardDone:
        """What was written of a shard, after checking all its files."""
        path = self._record(number)
        if not path.exists():
            raise NotFound(f"shard {number} of {self.folder} is not written yet: {AGAIN}")
        content = read_sealed_json(path, AGAIN)
        rows, left_out, files = (content.get(name) for name in ("rows", "left out", "files"))
        if type(rows) is not int or type(left_out) is not int or not isinstance(files, dict):
            raise Damaged(f"{path} is not a record of a shard: {AGAIN}")
        if content.get("inputs") != self.inputs[number]:
            raise Damaged(f"{path} belongs to other inputs: {AGAIN}")
        names = shard_files(number, len(self))
        known, needed = (
            {*names.values(), _left_out(number)},
            {names[IMAGES], names[METADATA]} if rows else set(),
        )
        if not needed <= files.keys() <= known:
            raise Damaged(f"{path} names other files than those of its shard: {AGAIN}")
        for name, written in files.items():
            file = self.folder / name
            size = file.stat().st_size if file.is_file() else -1
            if written != [size, digest_file(file) if size >= 0 else ""]:
                raise Damaged(f"{file} is missing, cut off or not what was written: {AGAIN}")
        return ShardDone(rows, left_out)

    def items(self, numbers: Iterable[int] | None = None) -> Iterator[Item]:
        """The pictures of some shards, or of all, with their vectors; each shard is verified before it is read."""
        for number in range(len(self)) if numbers is None else numbers:
            if self.done(number).rows:
                yield from read_rows(self.folder, shard_files(number, len(self)))

    def left_out(self, most: int) -> list[tuple[str, str]]:
        """Some pictures that could not be read, and why."""
        files = (self.folder / _left_out(number) for number in range(len(self)))
        entries = (
            entry
            for file in files
            if file.is_file()
            for entry in read_json_lines(file, picture=str, reason=str)
        )
        return [(entry["picture"], entry["reason"]) for entry in islice(entries, most)]

    def require(self, identity: Identity, about: Mapping[str, Any]) -> None:
        """Refuse to continue with another model, another extractor or other settings."""

        def told(identity: Identity, about: Mapping[str, Any]) -> dict[str, Any]:
            model = f"{identity.model_name} {identity.model}"
            return {"model": model, "features": identity.about.get("features"), **about}

        now, before = told(identity, about), told(self.identity, self.about)
        for name, value in now.items():
            if value != before.get(name):
                raise SelhnError(
                    f"{self.folder} was begun with another {name} ({before.get(name)}, not {value}): "
                    "use the same command as before, or another folder"
                )

    def _record(self, number: int) -> Path:
        return self.folder / "done" / f"done_{number}.json"


def _left_out(number: int) -> str:
    return f"left_out/left_out_{number}.jsonl"


def index_embeddings(
    folder: Path | str,
    path: Path | str,
    towers: AbstractTowers | None = None,
    precision: StoredPrecision = "float32",
    quiet: bool = False,
) -> Index:
    """Put the pictures of a folder of embeddings into an index, which is created if needed.

    What is in the index already is left alone, so the same call continues after it was stopped.

    Args:
        folder: written by `selhn embed`, or by clip-retrieval, for which the towers must be given.
        path: of the index, a folder or a URI.
        towers: those that made the vectors; may be left out if the folder names them.
        precision: of a new index.
    """
    folder = Path(folder)
    refuse_links(folder, [IMAGES, METADATA])
    planned = Shards.open(folder) if Shards.exist(folder) else None
    about = {} if planned is None else planned.identity.about
    towers = towers or open_towers_named_in_file(about.get("model"))
    if towers is None:
        raise SelhnError(f"{folder} does not name the model of its vectors: give it with --model, or towers=")
    if planned is not None:
        planned.identity.require(towers, folder)
    is_new = not Index.exists(path)
    index = (
        Index.create(towers, path, precision=precision, about=about, keep_towers="model" not in about)
        if is_new
        else Index.load(path, towers)
    )
    if planned is not None and not is_new and index.about.get("features") != about.get("features"):
        raise SelhnError(
            f"{path} was made with other features ({index.about.get('features')}) than {folder} "
            f"({about.get('features')}): give another path for the index"
        )
    numbers = range(len(planned)) if planned is not None else range(len(foreign := foreign_shards(folder)))
    shown = Progress(len(numbers), quiet=quiet)
    for number in numbers:  # a shard at a time, so that memory stays small
        items = planned.items([number]) if planned is not None else read_rows(folder, foreign[number])
        index.add(items, existing="skip")
        shown.step("shards")
    shown.clear()
    return index


def holds_embeddings(folder: Path) -> bool:
    """Whether `index_embeddings` accepts a folder."""
    return Shards.exist(folder) or (folder / IMAGES).is_dir()


def foreign_shards(folder: Path) -> list[dict[str, str]]:
    """Names of the files of each shard in a folder that clip-retrieval wrote."""
    numbers = [path.stem.removeprefix(f"{IMAGES}_") for path in (folder / IMAGES).glob(f"{IMAGES}_*.npy")]
    return [
        {IMAGES: f"{IMAGES}/{IMAGES}_{number}.npy", METADATA: f"{METADATA}/{METADATA}_{number}.parquet"}
        for number in sorted(numbers, key=lambda number: (len(number), number))
    ]
