"""Work that may be killed at any moment: what it does, what it must never lose, and what it ends with."""

import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from faults.reader import fresh_model, of_model, small_data, small_model
from model_cases import FEATURE_DIM, make_model

from selhn.base.errors import SelhnError
from selhn.data.formats.native import write_native
from selhn.eval import score_split
from selhn.export import towers_of
from selhn.export.clip_retrieval import embeddings_of_split, write_clip_retrieval
from selhn.losses import TripletSelHN
from selhn.models import load_model
from selhn.reproduce.comparison import write_page, write_runs
from selhn.reproduce.paper_runs import PaperRuns
from selhn.reproduce.tables import Wanted
from selhn.runs import RunFolder
from selhn.search import Index, Item
from selhn.search.stores import segments, store
from selhn.training import train


@dataclass(frozen=True)
class Work:
    """What is done in a folder, started again after every kill."""

    do: Callable[[Path], object]
    """All of it, or what is left of it."""
    progress: Callable[[Path], Any]
    """Opens what is there. A number or a set that never shrinks: what is done is never lost."""
    result: Callable[[Path], Any]
    """What it ends with; the same whatever happened on the way."""
    prepare: Callable[[Path], object] = lambda folder: None
    slow: bool = False
    """Whether only the long form does it."""


# A run


RUN_SETTINGS = {"batch_size": 8, "device": "cpu", "quiet": True, "checkpoint_every": 2, "ema": 0.9}


def train_run(folder):
    run = folder / "run"
    resume = RunFolder(run).started
    train(fresh_model(), small_data(), TripletSelHN(), out=run, epochs=2, resume=resume, **RUN_SETTINGS)


def begin_run(folder):
    train(fresh_model(), small_data(), TripletSelHN(), out=folder / "run", epochs=1, **RUN_SETTINGS)


def steps_done(folder):
    run = RunFolder(folder / "run")
    if not run.started:
        return 0
    return next(run.checkpoints.read()).content["position"]["step"]


def of_run(folder):
    run = RunFolder(folder / "run")
    latest, content, _ = next(run.checkpoints.read())
    said = [run.results, run.log(), run.config, run.identity, run.verdict]
    return [*said, latest.name, content, of_model(run.best_model())]


# A saved model


def models():
    return make_model("vse_fc"), make_model("rvse")


def save_model(folder):
    models()[1].save(folder / "model")


def model_kept(folder):
    """The model before or the new one, never none and never a mixture."""
    return ["vse_fc", "rvse"].index(load_model(folder / "model").name)


# An index


def item(n):
    regions = torch.rand(2, FEATURE_DIM, generator=torch.Generator().manual_seed(n))
    return Item(f"item{n}", regions, captions=(f"word{n % 30}",), metadata={"version": 1})


def fill_index(folder):
    segments.SEGMENT_ITEMS, store.ENCODED_AT_ONCE, segments.SMALL_SEGMENTS = 4, 4, 3
    path = folder / "index"
    index = Index.load(path) if Index.exists(path) else Index.create(towers_of(small_model()), path)
    index.add((item(n) for n in range(18) if n != 7 or len(index) < 17), existing="skip")
    index.update([Item(f"item{n}", metadata={"version": 2}) for n in (2, 5, 17)])
    if "item7" in index:
        index.delete(["item7"])
    index.approximate("hnsw")
    index.compact()


def items_kept(folder):
    if not Index.exists(folder / "index"):
        return set()
    index = Index.load(folder / "index")
    index.check()
    assert len(index.search("word1", k=100)) == len(index)
    names = set(index.ids()) - {"item7"}
    # An update is seen as a thing that was done too.
    return names | {f"{name} again" for name in names if index.get(name).metadata["version"] == 2}


def of_index(folder):
    index = Index.load(folder / "index")
    index.check()
    vectors = [(images, texts) for _, images, texts in index.embeddings()]
    return index.ids(), vectors, [index.get(name) for name in index.ids()], index.search("word1 word2", k=30)


# Albums of an index


def small_index(folder):
    index = Index.create(towers_of(small_model()), folder / "index")
    index.add(item(n) for n in range(6))
    index.albums.change("Trip", add=["item0"])


def fill_albums(folder):
    albums = Index.load(folder / "index").albums
    albums.change("Trip", add=["item1", "item2"])
    albums.change("Home", add=["item3"])
    albums.change("Home", new_name="House" if "House" not in albums.all() else "")
    albums.change("House", add=["item4"])
    if "Home" in albums.all():
        albums.delete("Home")


def albums_kept(folder):
    """Each item of each album; an album that is given another name counts by its items."""
    return {one for ids in Index.load(folder / "index").albums.all().values() for one in ids}


def of_albums(folder):
    index = Index.load(folder / "index")
    return sorted((name, sorted(ids)) for name, ids in index.albums.all().items()), index.count(
        "album = Trip"
    )


# Scores, exports, tables of the paper


def store_scores(folder):
    score_split(small_model(), small_data().test, 4, path=folder / "scores")


def blocks_done(folder):
    state = folder / "scores" / "scores.json"
    return json.loads(state.read_text())["done"] if state.exists() else 0


@contextmanager
def again(out):
    """A command that refuses to write over what it has finished before."""
    done = out.exists()
    try:
        yield
    except SelhnError:
        if not done:
            raise


def export_vectors(folder):
    with again(folder / "out"):
        write_clip_retrieval(embeddings_of_split(small_model(), small_data().test), folder / "out")


def of_export(folder):
    import numpy as np
    import pyarrow.parquet

    arrays = {path.name: np.load(path) for path in sorted((folder / "out").rglob("*.npy"))}
    return arrays, pyarrow.parquet.read_table(folder / "out" / "metadata" / "metadata_0.parquet").to_pylist()


def export_model(folder):
    from selhn.export import export_towers

    with again(folder / "out"):
        export_towers(small_model(), folder / "out")


SELHN, WITH_BERT = Wanted("rvse_selhn", "rvse_selhn"), Wanted("rvsepp_selhn", "rvsepp_selhn")


@cache
def paper_runs(folder):
    return PaperRuns(
        folder / "out", str(folder / "data"), ("epochs=1", "batch_size=8", "model.dim=16"), small=True
    )


def reproduce(folder):
    runs = paper_runs(folder)
    runs.train([SELHN, WITH_BERT])
    runs.metrics([SELHN, WITH_BERT])
    write_runs(runs.out)
    write_page(runs.out)


def runs_done(folder):
    return {path.parent.name for path in (folder / "out" / "runs").glob("*/*/results.json")}


def of_reproduce(folder):
    runs = paper_runs(folder)
    return [runs.metrics([SELHN]), runs.metrics([SELHN, WITH_BERT]), runs.logs(SELHN), runs.logs(WITH_BERT)]


WORK = {
    "albums": Work(fill_albums, albums_kept, of_albums, small_index, slow=True),
    "train": Work(train_run, steps_done, of_run),
    "resume": Work(train_run, steps_done, of_run, begin_run),
    "save": Work(
        save_model,
        model_kept,
        lambda folder: of_model(load_model(folder / "model")),
        lambda folder: models()[0].save(folder / "model"),
    ),  # fmt: skip
    "index": Work(fill_index, items_kept, of_index),
    "eval": Work(
        store_scores,
        blocks_done,
        lambda folder: score_split(small_model(), small_data().test, path=folder / "scores").clone(),
    ),
    "export": Work(export_vectors, lambda folder: set(), of_export),
    "export towers": Work(export_model, lambda folder: set(), lambda folder: 0, slow=True),
    "reproduce": Work(
        reproduce,
        runs_done,
        of_reproduce,
        lambda folder: write_native(small_data(), folder / "data"),
        slow=True,
    ),
}
