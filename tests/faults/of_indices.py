"""Indices, stored scores, caches of features, filters."""

import json
import shutil
from contextlib import suppress

import numpy as np
import torch
from faults.reader import Reader, files, of_model, small_data, small_model
from index_cases import make_item

from selhn.base.errors import SelhnError
from selhn.base.sealed import digest_file, write_sealed_json
from selhn.eval import score_split
from selhn.export import towers_of
from selhn.pictures import FeatureCache
from selhn.pictures.picture_folders import indexed_folders
from selhn.pictures.picture_sources import PictureInputs, list_source
from selhn.search import Index, Record
from selhn.search.albums import Albums
from selhn.search.embedded import EmbeddedRow, read_rows
from selhn.search.fit import Fit
from selhn.search.shards import Shards, foreign_shards
from selhn.search.stores.checked_files import write_checked_json, write_file
from selhn.search.stores.store import Identity
from selhn.search.where import read_filter


def make_scores(done):
    def make(folder):
        score_split(small_model(), small_data().test, 4, path=folder / "scores")
        if not done:
            seal_scores(folder, done=2)
            (folder / "scores" / "scores.npy").rename(folder / "scores" / "scores.partial.npy")

    return make


def seal_scores(folder, done=None):
    path = folder / "scores" / "scores.json"
    state = {
        key: value for key, value in json.loads(path.read_text()).items() if key not in ("format", "sha256")
    }
    if done is not None:
        state |= {"done": done, "checksums": state["checksums"][:done]}
    write_sealed_json(path, state)


def is_of_scores(path):
    return path.name != "lock"


def read_scores(folder):
    return score_split(small_model(), small_data().test, 4, path=folder / "scores").clone()


def make_index(precision="float32", **about):
    def make(folder):
        index = Index.create(towers_of(small_model()), folder / "index", precision=precision, about=about)
        index.add(make_item(number) for number in range(8))
        index.add(make_item(number) for number in range(8, 12))
        index.delete(["item3"])
        if precision == "float32":
            index.approximate("hnsw")

    return make


def read_index(folder):
    index = Index.load(folder / "index")
    index.check()
    vectors = [part for block in index.embeddings() for part in block]
    found = [index.search("word1 word2", k=20), index.search("word3", k=5, find="text", where="year > 2003")]
    return index.ids(), index.identity, vectors, found, of_model(index.towers.matcher), indexed_folders(index)


def seal_index(folder):
    """Lengths and checksums of all files, and of the manifest itself."""
    path = folder / "index" / "manifest.json"
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    for entry in content["segments"]:
        for name in entry["files"]:
            file = folder / "index" / "segments" / entry["name"] / name
            entry["files"][name] = write_file(file, [file.read_bytes()])
        if entry["deleted"]:
            file = folder / "index" / "deleted" / entry["deleted"][0]
            entry["deleted"][2] = write_file(file, [file.read_bytes()])
    for entry in content["approximate"]:
        file = folder / "index" / "approximate" / entry["file"]
        entry["written"] = write_file(file, [file.read_bytes()])
    write_checked_json(path, content)


def make_cache(precision):
    def make(folder):
        features = FeatureCache(folder, "tiny", 5, precision)
        features.put(
            {bytes([n]): torch.rand(3, 5, generator=torch.Generator().manual_seed(n)) for n in range(40)}
        )
        features.close()

    return make


def read_cache(precision):
    def read(folder):
        features = FeatureCache(folder, "tiny", 5, precision)
        try:
            return len(features), features.get([bytes([n]) for n in range(40)]), features.find(b"none")
        finally:
            features.close()

    return read


def read_filters(folder):
    lines = (folder / "filters.txt").read_text(encoding="utf-8", errors="replace").split("\n")
    return [repr(read_filter(line)) for line in lines if line.strip()]


def albums_of(folder):
    index = Index.create(towers_of(small_model()))
    index.add(make_item(number) for number in range(4))
    return Albums(folder, index.store)


def seal_albums(folder):
    content = json.loads((folder / "albums.json").read_text())
    content.pop("checksum", None)
    write_checked_json(folder / "albums.json", content)


def make_shards(folder):
    about = {"source": "/pictures", "rows": 3}
    entries = [[{"path": f"{shard}{n}.jpg"} for n in range(3)] for shard in "ab"]
    shards = Shards.plan(folder / "out", Identity("abc", "small", 4), about, entries)
    chance = np.random.default_rng(0)
    for number in range(2):
        records = [Record(f"{number}{n}.jpg", (f"text {n}",), {"year": 2000 + n}) for n in range(2)]
        vectors = chance.random((4, 4), np.float32)
        rows = [
            EmbeddedRow(one, vectors[n], one.captions[0], vectors[n + 2]) for n, one in enumerate(records)
        ]
        shards.write(number, rows, [("2.jpg", "is empty")])


def read_shards(folder):
    shards = Shards.open(folder / "out")
    parts = [shards.entries(number) for number in range(len(shards))]
    return shards.identity, shards.about, shards.pictures, parts, list(shards.items()), shards.left_out(10)


def seal_shards(folder):
    """Sizes and checksums of all files, of the records of the shards, and of the manifest."""
    path = folder / "out" / "manifest.json"
    manifest = {
        key: value for key, value in json.loads(path.read_text()).items() if key not in ("format", "sha256")
    }
    for number in range(len(manifest["inputs"])):
        manifest["inputs"][number] = digest_file(folder / "out" / "inputs" / f"inputs_{number}.jsonl")
        record = folder / "out" / "done" / f"done_{number}.json"
        content = {
            key: value
            for key, value in json.loads(record.read_text()).items()
            if key not in ("format", "sha256")
        }
        for name in content["files"]:
            file = folder / "out" / name
            content["files"][name] = [file.stat().st_size, digest_file(file)]
        write_sealed_json(record, {**content, "inputs": manifest["inputs"][number]})
    write_sealed_json(path, manifest)


def make_foreign_shards(folder):
    make_shards(folder)
    for name in ("img_emb", "metadata"):
        (folder / "out" / name).rename(folder / name)
    shutil.rmtree(folder / "out")


def make_list(folder):
    (folder / "list.txt").write_text("a/b.jpg\n/c/d.png\n\nhttp://e/f.jpg\n")


def make_parquet(folder):
    import pyarrow.parquet

    images = [{"bytes": b"12345" * n, "path": f"{n}.jpg"} for n in range(8)]
    table = pyarrow.table({"image": images, "caption": [f"text {n}" for n in range(8)], "n": list(range(8))})
    pyarrow.parquet.write_table(table, folder / "table.parquet", row_group_size=3)


def read_source(name):
    def read(folder):
        how, shards = list_source(folder / name, 5)
        pictures = [
            one for some in shards for one in PictureInputs(some, how["columns"] or {}, folder / name)
        ]
        for one in pictures:
            with suppress(SelhnError):  # which is listed, and not fatal
                one.read()
        return how["columns"], pictures

    return read


FILTERS = (
    "year > 2003 and not even = true",
    "folder in (\"a\", 'b', 3) or (exif.year <= 1e3)",
    'name like "*.jp?g"',
)
INDEX_FILES = files("manifest.json", "segments/*/*", "deleted/*")
READERS = {
    "index": Reader(make_index(extractor="none"), read_index, INDEX_FILES, seal_index, share=0.5),
    "index, int8": Reader(make_index("int8"), read_index, INDEX_FILES, seal_index, share=0.5),
    "stored scores": Reader(make_scores(True), read_scores, is_of_scores, seal_scores),
    "stored scores, begun": Reader(make_scores(False), read_scores, is_of_scores, seal_scores),
    "feature cache": Reader(make_cache("float16"), read_cache("float16")),
    "feature cache, int8": Reader(make_cache("int8"), read_cache("int8")),
    "fit": Reader(
        lambda folder: Fit("a1b2", {"dog": 7, "snow": 3}, (-3.0, 0.5, 0.25, -1.0), (9.0, 0, 0, 1)).write(
            folder / "fit.json"
        ),
        lambda folder: Fit.read(folder / "fit.json")("a dog", [0.4]),
    ),
    "albums": Reader(
        lambda folder: albums_of(folder).change("Trip", add=["item1", "item2"]),
        lambda folder: albums_of(folder).all(),
        lambda path: path.match("albums.json") and path.exists(),  # without the file there are none
        seal_albums,
    ),
    "embeddings": Reader(
        make_shards, read_shards, files("out/*", "out/*/*"), seal_shards, finite=True, share=0.5
    ),
    "embeddings, of others": Reader(
        make_foreign_shards,
        lambda folder: [list(read_rows(folder, names)) for names in foreign_shards(folder)],
        share=0.5,
    ),
    "list of pictures": Reader(make_list, read_source("list.txt")),
    "Parquet of pictures": Reader(make_parquet, read_source("table.parquet"), share=0.5),
    "filters": Reader(lambda folder: (folder / "filters.txt").write_text("\n".join(FILTERS)), read_filters),
}
