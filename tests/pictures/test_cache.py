import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
import torch
from picture_cases import need_ready_model

from selhn.base.disk_errors import is_disk_full
from selhn.base.errors import Damaged, Linked, NotFound, SelhnError
from selhn.data import Features
from selhn.pictures import CachedFeatures, FeatureCache, Library, default_cache, load_extractor, open_picture
from selhn.pictures.backbones import EfficientNetLite
from selhn.pictures.cache import content_key
from selhn.pictures.examples import PICTURES


@pytest.mark.parametrize(("precision", "error"), [("float32", 0), ("float16", 1e-3), ("int8", 1 / 250)])
def test_what_is_put_is_there_after_opening_again(tmp_path, precision, error):
    features = torch.rand(3, 5) * torch.tensor([[1.0], [20.0], [0.0]])
    cache = FeatureCache(tmp_path, "tiny", 5, precision)
    cache.put({b"one": features, b"two": features[:2]})
    cache.close()
    again = FeatureCache(tmp_path, "tiny", 5, precision)
    assert len(again) == 2
    assert b"one" in again
    assert b"three" not in again
    two, one = again.get([b"two", b"one"])
    assert two.shape == (2, 5)
    assert ((one - features).abs() <= error * features.amax(1, keepdim=True)).all()


def test_an_identity_may_be_long(tmp_path):
    assert len(FeatureCache(tmp_path, "long" * 250, 5).path.name) < 200


def test_extractors_and_precisions_have_files_of_their_own(tmp_path):
    paths = {
        FeatureCache(tmp_path, identity, 5, precision).path
        for identity in ("timm:resnet18, grid 3", "timm:resnet18, grid 2")
        for precision in ("float32", "int8")
    }
    assert len(paths) == 4
    assert all(path.name.startswith("timm_resnet18-") for path in paths)


def test_ragged_images_are_padded(tmp_path):
    cache = FeatureCache(tmp_path, "tiny", 5, "float32")
    cache.put({b"a": torch.ones(3, 5), b"b": torch.ones(1, 5)})
    features = CachedFeatures(cache, [b"a", b"b", b"a"], 3)
    assert isinstance(features, Features)
    regions, mask = features.gather(torch.tensor([2, 1]))
    assert mask.tolist() == [[True] * 3, [True, False, False]]
    assert regions.sum((1, 2)).tolist() == [15, 5]
    assert (features.num_images, features.width, features.num_bytes) == (3, 5, 180)


def test_other_threads_may_gather(tmp_path):
    cache = FeatureCache(tmp_path, "tiny", 5, "float32")
    cache.put({bytes([n]): torch.full((1, 5), float(n)) for n in range(20)})
    features = CachedFeatures(cache, [bytes([n]) for n in range(20)], 1)
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda n: features.gather(torch.tensor([n]))[0].mean().item(), [*range(20)] * 5)
        )
    assert found == [*range(20)] * 5


def test_nothing_is_kept_of_a_write_that_failed(tmp_path):
    cache = FeatureCache(tmp_path, "tiny", 5)
    with pytest.raises(ValueError, match="not finite"):
        cache.put({b"a": torch.ones(1, 5), b"b": torch.full((1, 5), torch.nan)})
    assert b"a" not in cache
    assert len(FeatureCache(tmp_path, "tiny", 5)) == 0


def test_damaged_files(tmp_path, as_a_user):
    cache = FeatureCache(tmp_path, "tiny", 5)
    with pytest.raises(NotFound):
        cache.get([b"a"])
    with sqlite3.connect(cache.path) as base:
        base.execute("INSERT INTO features VALUES (?, ?)", (b"a", b"123"))
    base.close()
    with pytest.raises(Damaged):
        cache.get([b"a"])
    cache.close()
    cache.path.write_bytes(b"no database at all" * 100)
    with pytest.raises(ValueError, match=r"cannot be used \(file is not a database\).*remove the file"):
        FeatureCache(tmp_path, "tiny", 5)
    with pytest.raises(ValueError, match="precision is 'int4'"):
        FeatureCache(tmp_path, "tiny", 5, "int4")


def test_a_schema_that_is_not_text_is_one_sentence(tmp_path):
    cache = FeatureCache(tmp_path, "tiny", 5)
    cache.close()
    content = cache.path.read_bytes()
    cache.path.write_bytes(content.replace(b"CREATE TABLE features", b"CREATE TABLE f\xff\xfeatur"))
    assert cache.path.read_bytes() != content
    with pytest.raises(SelhnError, match="remove the file"):
        FeatureCache(tmp_path, "tiny", 5)


@pytest.mark.parametrize("end", ["", "-journal", "-wal"])
def test_a_link_in_its_place_is_refused(tmp_path, end):
    cache = FeatureCache(tmp_path / "cache", "tiny", 5)
    cache.close()
    assert cache.path.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "mine").write_bytes(b"")
    path = cache.path.with_name(cache.path.name + end)
    path.unlink(missing_ok=True)
    path.symlink_to(tmp_path / "mine")
    with pytest.raises(Linked):
        FeatureCache(tmp_path / "cache", "tiny", 5)
    assert (tmp_path / "mine").read_bytes() == b""


def test_a_full_disk_is_told_with_the_file(tmp_path):
    cache = FeatureCache(tmp_path, "tiny", 5)
    cache._base.execute("PRAGMA max_page_count = 3")
    with pytest.raises(SelhnError, match="full") as told:
        cache.put({bytes([number]) * 32: torch.rand(200, 5) for number in range(20)})
    assert str(cache.path) in str(told.value)
    assert is_disk_full(told.value)


def test_a_changed_byte_is_seen_and_mended(tmp_path):
    cache = FeatureCache(tmp_path, "tiny", 5)
    cache.put({b"a": torch.ones(2, 5), b"b": torch.ones(2, 5)})
    with sqlite3.connect(cache.path) as base:
        (value,) = base.execute("SELECT value FROM features WHERE key = ?", (b"a",)).fetchone()
        changed = value[:9] + bytes([value[9] ^ 1]) + value[10:]
        base.execute("UPDATE features SET value = ? WHERE key = ?", (changed, b"a"))
        base.execute("INSERT INTO features VALUES (?, ?)", (b"c", 10**12))
    base.close()
    cache.close()
    again = FeatureCache(tmp_path, "tiny", 5)
    assert [again.find(key) is not None for key in (b"a", b"b", b"c", b"d")] == [False, True, False, False]
    with pytest.raises(Damaged):
        again.get([b"a"])
    again.put({b"a": torch.zeros(2, 5)})
    assert again.get([b"a"])[0].sum() == 0


def test_places_and_keys(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "selhn" / "features"
    assert content_key(b"a") != content_key(b"b")
    assert len(content_key(b"a")) == 32


def test_a_cache_of_an_earlier_version_is_read(tmp_path):
    before = Path(__file__).parents[1] / "fixtures" / "before_the_house"
    shutil.copytree(before / "features", tmp_path / "features")
    cache = FeatureCache(tmp_path / "features", "efficientnet_lite2, grid 3, full, , c0ce6bd668817230", 1280)
    assert len(cache) == 3
    regions = cache.find(content_key((PICTURES / "000000000790.jpg").read_bytes()))
    assert regions.shape == (10, 1280)
    assert 0.1 < regions.mean() < 1
    now = load_extractor()
    assert now.identity == "efficientnet_lite2, grid 3, full, , c0ce6bd668817230"
    picture = open_picture(PICTURES / "000000000790.jpg").image
    for extractor in (now, replace(now, backbone=EfficientNetLite(2, eager=True))):
        # Float16 has steps of 2^-11 of a number up to 2^-10 of it: those stored and ours are at most one step apart.
        torch.testing.assert_close(extractor([picture])[0].half().float(), regions, rtol=2**-10, atol=1e-4)
    need_ready_model()
    shutil.copytree(before / "pictures_index", tmp_path / "index")
    with pytest.raises(SelhnError, match="another version of the model 'ready'.* makes it again by itself"):
        Library.open(tmp_path / "index")


def test_a_cache_is_closed_after_what_another_thread_asks(tmp_path):
    """SQLite ends the whole process if a connection is closed while it is in use."""
    cache = FeatureCache(tmp_path, "an extractor", 4)
    base, asked, go_on, order = cache._base, Event(), Event(), []

    class Slow:
        def execute(self, *statement):
            asked.set()
            go_on.wait(20)
            order.append("asked")
            return base.execute(*statement)

        def close(self):
            order.append("closed")

    cache._base = Slow()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(cache.find, b"key")
        assert asked.wait(20)
        closing = pool.submit(cache.close)
        with suppress(TimeoutError):
            closing.result(0.2)
        go_on.set()
        closing.result(20)
    assert order == ["asked", "closed"]
    base.close()
