"""Indices, stored scores, caches of features, filters."""

import json

import torch
from faults.reader import Reader, files, of_model, small_data, small_model
from index_cases import make_item

from selhn.base.sealed import write_sealed_json
from selhn.eval import score_split
from selhn.pictures import FeatureCache
from selhn.pictures.picture_folders import indexed_folders
from selhn.search import Index
from selhn.search.albums import Albums
from selhn.search.fit import Fit
from selhn.search.stores.checked_files import write_checked_json, write_file
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
    state = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("format", "sha256")}
    if done is not None:
        state |= {"done": done, "checksums": state["checksums"][:done]}
    write_sealed_json(path, state)


def is_of_scores(path):
    return path.name != "lock"


def read_scores(folder):
    return score_split(small_model(), small_data().test, 4, path=folder / "scores").clone()


def make_index(precision="float32", **about):
    def make(folder):
        index = Index.create(small_model(), folder / "index", precision=precision, about=about)
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
    return index.ids(), index.identity, vectors, found, of_model(index.model), indexed_folders(index)


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
        features.put({bytes([n]): torch.rand(3, 5, generator=torch.Generator().manual_seed(n)) for n in range(40)})
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
    index = Index.create(small_model())
    index.add(make_item(number) for number in range(4))
    return Albums(folder, index.store)


def seal_albums(folder):
    content = json.loads((folder / "albums.json").read_text())
    content.pop("checksum", None)
    write_checked_json(folder / "albums.json", content)


FILTERS = ("year > 2003 and not even = true", "folder in (\"a\", 'b', 3) or (exif.year <= 1e3)", 'name like "*.jp?g"')
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
    "filters": Reader(lambda folder: (folder / "filters.txt").write_text("\n".join(FILTERS)), read_filters),
}
