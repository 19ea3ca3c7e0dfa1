import numpy as np
import pytest
import torch
from picture_cases import TinyBackbone, encoded, photo
from tower_cases import SIDE, WIDTH, change_description, of_pixels, weights, with_graph, write_towers

from selhn.pictures.cache import FeatureCache, cache_file
from selhn.pictures.decoding import decode_picture
from selhn.pictures.extraction import Extraction
from selhn.pictures.extractor import Extractor
from selhn.pictures.kept import kept_files, told_size
from selhn.pictures.tower_vectors import TowerVectors
from selhn.towers import AbstractTowers, Towers


class TinyTowers(AbstractTowers):
    """The means of a picture's colours, and more of them."""

    name, digest, width, features = "tiny", "0123456789abcdef", 1024, "colours, grid 0"
    resized = (4, 4)

    def __init__(self, in_threads=True):
        self.in_threads, self.calls = in_threads, []

    def embed_texts(self, texts):
        raise NotImplementedError

    def prepare(self, picture):
        return np.asarray(picture.resize(self.resized), np.float32).mean((0, 1)) / 255

    def embed_prepared(self, prepared):
        self.calls.append(len(prepared))
        return np.tile(np.stack(prepared), 342)[:, :1024]

    def save(self, folder):
        raise NotImplementedError


@pytest.mark.parametrize("in_threads", [True, False])
def test_towers_take_the_place_of_an_extractor(tmp_path, in_threads):
    paths = [tmp_path / f"{number}.jpg" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(encoded(photo(number % 4)))
    towers = TinyTowers(in_threads)
    vectors = TowerVectors(towers)
    store = FeatureCache(tmp_path / "cache", vectors.cached_as, vectors.width, "float32")
    found = list(Extraction(paths, vectors, store, batch_size=8, quiet=True))
    assert [one.path for one in found] == paths
    decoded = [decode_picture(path.read_bytes(), "a", resized=towers.resized).image for path in paths]
    wanted = towers.embed_pictures(decoded)
    np.testing.assert_array_equal(np.stack([one.vector for one in found]), wanted)
    assert len(store) == 4, "two files have the same content"
    calls = len(towers.calls)
    assert max(towers.calls[:-1]) == (1 if in_threads else 4)
    assert len(list(Extraction(paths, vectors, store, quiet=True))) == 5
    assert len(towers.calls) == calls, "all were in the cache"


def test_a_picture_takes_at_most_5_kb_of_the_cache(tmp_path):
    vectors = TowerVectors(TinyTowers())
    store = FeatureCache(tmp_path, vectors.cached_as, vectors.width, "float32")
    generator = torch.Generator().manual_seed(0)
    for first in range(0, 2000, 16):
        keys = [number.to_bytes(32, "big")[::-1] for number in range(first, first + 16)]
        store.put(dict(zip(keys, torch.randn(16, 1, 1024, generator=generator))))
    store.close()
    assert store.path.stat().st_size / 2000 < 5000


def test_what_is_kept_is_told(tmp_path):
    towers, cache = TinyTowers(), tmp_path / "cache"
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "a").write_bytes(bytes(2_340_000))
    lines = kept_files(tmp_path / "index", towers, cache)
    assert lines[0] == f"index: {tmp_path / 'index'} (2.3 MB)"
    assert str(cache) in lines[1]
    assert lines[1].endswith("(0.0 MB)")
    assert len(lines) == 2
    former = cache_file(cache, towers.features, "float16")
    former.parent.mkdir()
    former.write_bytes(bytes(10**6))
    *_, last = kept_files("http://localhost:19530", towers, cache)
    assert last == f"no longer used, may be removed: {former} (1.0 MB, regions of an earlier version)"
    towers.resized = None
    assert len(kept_files(None, towers, cache)) == 2, "data sets still use that file"
    assert told_size(tmp_path / "nowhere") == "0.0 MB"


def test_features_and_vectors_of_reduced_pictures_have_caches_of_their_own(tmp_path):
    towers = TinyTowers()
    assert TowerVectors(towers).cached_as == "colours, grid 0, vectors of 0123456789abcdef, JPEG reduced"
    extractor = Extractor(TinyBackbone())
    assert extractor.cached_as.removeprefix(extractor.identity) in ("", ", JPEG reduced")
    towers.resized = None
    assert "reduced" not in TowerVectors(towers).cached_as


def test_towers_that_claim_to_be_others_have_a_cache_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("selhn.towers.towers.first_run", lambda folder, size: None)

    def cached_as(name, change=lambda content: None, **files):
        folder = write_towers(tmp_path / name, files=files.items())
        change_description(folder, change)
        towers = Towers.open(folder)
        assert (towers.digest, towers.features) == ("0123" * 6, "tiny pixels")
        return TowerVectors(towers).cached_as

    def other_weights(model):
        model.graph.initializer[0].CopyFrom(weights("W", 3 * SIDE * SIDE, WIDTH, seed=9))

    real = cached_as("real")
    assert cached_as("copy", lambda content: content.update(name="a copy")) == real
    assert cached_as("weights", **{"image.onnx": with_graph(of_pixels(), other_weights)}) != real
    assert cached_as("weights beside", **{"image.weights": b"other numbers"}) != real
    assert cached_as("pixels", lambda content: content["pictures"].update(mean=[0.0] * 3)) != real
