"""Folders as somebody else sends them, made by the same commands, and what the user has beside them."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from faults.planted import OUTSIDE, Outside
from faults.reader import small_data, small_model
from model_cases import FEATURE_DIM, make_model
from picture_cases import TinyBackbone, encoded, photo, stand_in
from tower_cases import write_towers

from selhn import cli
from selhn.data.formats.native import write_native
from selhn.export import towers_of
from selhn.pictures import Extractor, Library
from selhn.search import Index, Item
from selhn.serve import photos

TOKEN = "a-token-of-16-letters"
TRAINED = (
    "model=rvse",
    "loss=selhn",
    "batch_size=8",
    "model.dim=16",
    "model.word_dim=8",
    "device=cpu",
    "lr_warmup=0",
)


@dataclass(frozen=True)
class Place:
    """Where everything is; always the same while a drill runs, because paths are part of what is stored."""

    root: Path

    @property
    def user(self) -> Path:
        """The user's home folder."""
        return self.root / "user"

    @property
    def given(self) -> Path:
        """Where the folder from elsewhere was put."""
        return self.root / "given"

    @property
    def outside(self) -> Outside:
        return Outside(self.root / OUTSIDE)


class Backbone(TinyBackbone):
    """Features as wide as those of the small models."""

    width = FEATURE_DIM

    def maps(self, pixels):
        return super().maps(pixels).repeat(1, FEATURE_DIM // 4, 1, 1)


def prepare() -> None:
    """Small models in the place of those that need weights; once, before anything is forked."""
    torch.set_num_threads(1)
    photos.MODEL_PACKAGES = ()
    stand_in(small_model, lambda: Extractor(Backbone()))


def live_in(place: Place) -> None:
    """Become the user, in a process of its own."""
    for name in [name for name in os.environ if name.startswith(("XDG_", "SELHN_"))]:
        del os.environ[name]
    os.environ |= {"HOME": str(place.user), "SELHN_TOKEN": TOKEN, "COLUMNS": "1000"}
    os.chdir(place.user)


def selhn(*words: object) -> int:
    """A command; its exit status."""
    sys.argv = ["selhn", *map(str, words)]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def required(*words: object) -> None:
    if (status := selhn(*words)) != 0:
        raise RuntimeError(f"selhn {' '.join(map(str, words))} ends with {status}")


# What the user has


def make_user(place: Place) -> None:
    write_native(small_data(), place.user / "data")
    small_model().save(place.user / "model")
    pictures = place.user / "Pictures"
    (pictures / "trip").mkdir(parents=True)
    for number in range(5):
        content = encoded(photo(number, (60, 40)), "PNG")
        (pictures / ("trip" if number % 2 else ".") / f"{number}.png").write_bytes(content)
    (place.user / "new.png").write_bytes(encoded(photo(7, (60, 40)), "PNG"))
    (place.user / "list.txt").write_text("Pictures/0.png\nPictures/2.png\n")


def change_pictures(place: Place) -> None:
    """So that an index has something to do: a picture more, one less, one that is another."""
    pictures = place.user / "Pictures"
    (pictures / "0.png").unlink()
    (pictures / "5.png").write_bytes(encoded(photo(5, (60, 40)), "PNG"))
    (pictures / "2.png").write_bytes(encoded(photo(6, (60, 44)), "PNG"))


# What is given


def make_run(place: Place) -> None:
    required("train", f"data={place.user / 'data'}", *TRAINED, "epochs=1", "--out", place.given / "run")
    required("report", place.given / "run", "--examples", 0)


def make_killed_run(place: Place) -> None:
    """Killed while it replaced its best model."""
    make_run(place)
    child = os.fork()
    if child == 0:
        hidden = str(place.given / "run" / ".best.partial")
        seen = []

        def kill(event: str, args: tuple[object, ...]) -> None:
            if event == "os.rename":
                if seen:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen.extend([1] * str(args[1]).startswith(hidden))

        sys.addaudithook(kill)
        selhn("train", "--resume", place.given / "run", "epochs=9")
        os._exit(0)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        raise RuntimeError("the run was not killed while it replaced its best model")


def make_saved(place: Place) -> None:
    small_model().save(place.given / "model")


def make_towers(place: Place) -> None:
    write_towers(place.given / "towers", parts=True, bank=True)


def make_attention(place: Place) -> None:
    """A model that compares words with regions, for an index that the user has."""
    make_model("scan_t2i_avg").save(place.given / "model")
    required(
        "index", place.user / "Pictures", "--index", place.user / "index", "--model", place.user / "model"
    )


def make_index(place: Place) -> None:
    """Of pictures, with captions, albums, an upload, a removed picture, and approximate search."""
    index = place.given / "index"
    (place.user / "captions.jsonl").write_text(
        "".join(
            json.dumps({"image": f"{n}.png", "captions": [f"word{n} word{n + 9}"]}) + "\n" for n in (0, 2, 4)
        )
    )
    required("index", place.user / "Pictures", "--index", index, "--model", place.user / "model",
             "--captions", place.user / "captions.jsonl")  # fmt: skip
    required("index", "--index", index, "--approximate", "hnsw")
    opened = Library.open(index)
    opened.add(encoded(photo(8, (60, 40)), "PNG"))
    opened.delete(str(place.user / "Pictures" / "4.png"))
    ids = opened.index.ids()
    opened.index.albums.change("Trip", add=ids[:2])
    change_pictures(place)


def make_outdated_index(place: Place) -> None:
    """Made by a former version of the ready model."""
    required("index", place.user / "Pictures", "--index", place.given / "index")
    Library.open(place.given / "index").index.albums.change(
        "Trip", add=[str(place.user / "Pictures" / "0.png")]
    )


def update_ready_model() -> None:
    stand_in(lambda: make_model("rvse", dim=8), lambda: Extractor(Backbone()))


def make_embeddings(done: bool) -> Callable[[Place], None]:
    def make(place: Place) -> None:
        required(*embed(place))
        if not done:  # as after a kill: the second shard is missing
            for path in (place.given / "embeddings").rglob("*_1.*"):
                if path.parent.name != "inputs":
                    path.unlink()

    return make


def embed(place: Place, *more: object) -> tuple[object, ...]:
    model = ("--model", place.user / "model", "--rows", 3)
    return ("embed", place.user / "Pictures", place.given / "embeddings", *model, *more)


def make_scores(place: Place) -> None:
    required(*evaluate_into(place))


def evaluate_into(place: Place) -> tuple[object, ...]:
    data = ("--data", place.user / "data", "--device", "cpu")
    return ("eval", place.user / "model", *data, "--scores", place.given / "scores")


def make_reproduced(place: Place) -> None:
    """The folder of the paper's figures, with their runs."""
    required(*reproduced(place))


def reproduced(place: Place) -> tuple[object, ...]:
    small = ("--tiny", "--jobs", 1, "epochs=1", "model.dim=16")
    return ("reproduce", "fig7", *small, "--data", place.user / "data", "--out", place.given / "reproduced")


# What names files outside


def make_naming_index(place: Place) -> None:
    """An index whose items are files that nobody indexed on this machine."""
    index, outside = place.given / "index", place.outside.path
    about = {"extractor": "ready", "features": Extractor(Backbone()).identity}
    made = Index.create(towers_of(small_model()), index, about=about)
    regions = torch.rand(2, FEATURE_DIM)
    names = [str(outside / "id_rsa"), str(outside / "holiday.png"), f"../{OUTSIDE}/holiday.png"]
    for name in (*names, str(outside / "folder" / "new" / "config.json")):
        path = Path(name)
        made.add(
            [Item(name, regions, None, ("word1",), {"file": path.name, "folder": "", "taken": "2020-01-01"})]
        )
    status = (outside / "holiday.png").stat()
    sized = {"file": "holiday.png", "bytes": status.st_size, "modified": status.st_mtime}
    (place.given / "link.png").symlink_to(outside / "holiday.png")
    made.add([Item(str(place.given / "link.png"), regions, None, ("word2",), {**sized, "file": "link.png"})])


def make_naming_run(place: Place) -> None:
    """A run that is given with its data, which name a folder of pictures outside; its environment names a file.

    That a run names its data set is no more than the default of --data: the set itself may be anywhere.
    """
    data, photographs = place.given / "data", place.outside.path / "photographs"
    shutil.copytree(place.user / "data", data)
    photographs.mkdir()
    for split in ("train", "dev", "test"):
        for number in range(8):
            shutil.copy(place.outside.path / "holiday.png", photographs / f"{split}{number}.jpg")
    told = {"folder": str(photographs), "used": 24, "refused": []}
    (data / "pictures.json").write_text(json.dumps(told))
    required("train", f"data={data}", *TRAINED, "epochs=1", "--out", place.given / "run")
    (place.given / "run" / "env.json").write_text(
        json.dumps({"platform": str(place.outside.path / "id_rsa")})
    )


def make_naming_parquet(place: Place) -> None:
    """Tables and lists that name pictures by absolute paths, and by paths that lead upwards."""
    import pyarrow.parquet

    outside = place.outside.path
    names = [str(outside / "holiday.png"), f"../{OUTSIDE}/holiday.png", f"../../{OUTSIDE}/id_rsa"]
    folder = place.given / "table"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"path": names}), folder / "pictures.parquet")
    (place.given / "list.txt").write_text("\n".join(names) + "\n")


MAKERS: dict[str, Callable[[Place], None]] = {
    "run": make_run,
    "killed run": make_killed_run,
    "model": make_saved,
    "attention": make_attention,
    "towers": make_towers,
    "index": make_index,
    "outdated index": make_outdated_index,
    "embeddings": make_embeddings(True),
    "half embeddings": make_embeddings(False),
    "scores": make_scores,
    "reproduced": make_reproduced,
    "index naming files": make_naming_index,
    "run naming data": make_naming_run,
    "table naming files": make_naming_parquet,
}
