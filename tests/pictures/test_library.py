"""A folder of pictures and its index, with a vision model and a text model that need no weights."""

import io
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections import Counter

import pytest
import torch
from picture_cases import (
    TinyBackbone,
    encoded,
    huge_png,
    mutate,
    mutations,
    need_ready_model,
    photo,
    shut_off,
    stand_in,
)
from PIL import Image

from selhn.base.errors import Locked, NotFound, SelhnError
from selhn.base.progress import Progress
from selhn.export import towers_of
from selhn.models import create_model
from selhn.pictures import Extractor, Library, index_pictures, open_picture
from selhn.pictures.examples import PICTURES
from selhn.pictures.extraction import PictureRegions, in_blocks
from selhn.pictures.picture_folders import default_index, picture_id
from selhn.pictures.picture_report import REPORT_FILE
from selhn.pictures.plans import make_plan
from selhn.search import Index, Item
from selhn.search.hits import Hits
from selhn.serve.collection import Collection
from selhn.text import Vocabulary


def small_model():
    torch.manual_seed(0)
    words = Vocabulary.build(["a red ball", "a dog in the snow"], 1)
    return create_model("rvse", tokenizer=words, feature_dim=4, dim=8).eval()


@pytest.fixture
def ready(monkeypatch, tmp_path):
    """Small models in place of those that are packages of their own; gives what the backbone computed."""
    backbone = TinyBackbone()
    stand_in(small_model, lambda: Extractor(backbone), monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return backbone.calls


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "Pictures"
    (place / "trip").mkdir(parents=True)
    for number in range(6):
        (place / ("trip" if number % 2 else ".") / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    return place


def test_a_folder_is_indexed_and_kept_up_to_date(ready, folder, tmp_path):
    first = index_pictures(folder, quiet=True)
    assert first.index.path == default_index() == tmp_path / "share" / "selhn" / "pictures.index"
    assert (first.added, first.changed, first.removed, first.plan.unchanged) == (6, 0, 0, 0)
    assert first.index.about["model"] == first.index.about["extractor"] == "ready"
    assert not (default_index() / "models").exists(), "the ready model is named, not copied"
    names = sorted(str(path) for path in folder.rglob("*.png"))
    assert sorted(Index.load(default_index()).ids()) == names
    ready.clear()
    again = index_pictures(folder, quiet=True)
    assert (again.added, again.changed, again.removed, again.plan.unchanged) == (0, 0, 0, 6)
    (folder / "0.png").write_bytes(encoded(photo(90), "PNG"))
    (folder / "trip" / "1.png").rename(folder / "moved.png")
    (folder / "2.png").unlink()
    (folder / "new.png").write_bytes(encoded(photo(91), "PNG"))
    third = index_pictures(folder, quiet=True)
    assert (third.added, third.changed, third.removed, third.plan.unchanged) == (2, 1, 2, 3)
    assert sum(ready) == 2, "of the moved one the features are known"
    assert sorted(third.index.ids()) == sorted(str(path) for path in folder.rglob("*.png"))
    fresh = index_pictures(folder, tmp_path / "other.index", quiet=True)
    for name in fresh.index.ids():
        ours, theirs = (one.index.store.get([name], vectors=True)[name].vector for one in (third, fresh))
        torch.testing.assert_close(ours, theirs)


def test_two_folders_share_an_index(ready, folder, tmp_path):
    other = tmp_path / "Pictures2"
    other.mkdir()
    (other / "0.png").write_bytes(encoded(photo(50), "PNG"))
    index_pictures(folder, quiet=True)
    both = index_pictures(other, quiet=True)
    assert (both.added, both.removed, len(both.index)) == (1, 0, 7)
    assert len(both.index.search("a dog", k=10, where="folder = trip")) == 3


def test_what_files_say_is_kept(ready, folder):
    (folder / "captions.csv").write_text("image,caption\n0.png,a red ball\ngone.png,a dog\n")
    done = index_pictures(folder, captions=folder / "captions.csv", quiet=True)
    assert done.index.get(picture_id(folder / "0.png")).captions == ("a red ball",)
    assert [name for name, _ in done.report.refused] == ["gone.png"]
    assert done.index.search("a red ball", find="text")[0].name == "a red ball"
    (folder / "0.png").write_bytes(encoded(photo(80), "PNG"))
    assert index_pictures(folder, quiet=True).changed == 1
    index = Index.load(default_index())
    assert index.get(picture_id(folder / "0.png")).captions == ("a red ball",), (
        "captions stay with a changed picture"
    )
    (folder / "captions.csv").write_text("image,caption\n3.png,a dog\n")
    assert index_pictures(folder, captions=folder / "captions.csv", quiet=True).changed == 2


def test_bad_files_are_listed_and_never_fatal(ready, folder):
    index_pictures(folder, quiet=True)
    bad = {"bomb.png": huge_png(), "empty.jpg": b"", "cut.png": encoded(photo(3), "PNG")[:50], "5.txt": b"x"}
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    (folder / "0.png").write_bytes(b"no longer a picture")
    (folder / "old.png").write_bytes(encoded(photo(60), "PNG"))
    os.utime(folder / "old.png", (-(10**11), 10**12))
    if sys.platform == "linux":
        (folder / os.fsdecode(b"caf\xe9.png")).write_bytes(encoded(photo(61), "PNG"))
        (folder / os.fsdecode(b"a.\xe9")).write_bytes(b"x")
    done = index_pictures(folder, quiet=True)
    refused = {name for name, _ in done.report.refused}
    assert {"bomb.png", "empty.jpg", "cut.png", "0.png"} == refused - {"caf\\udce9.png"}
    assert (done.added, done.removed) == (1, 1)
    assert picture_id(folder / "0.png") not in done.index
    said = str(done)
    said.encode()
    assert "left out: bomb.png: this file is too large (" in said
    assert "1 .txt" in said
    kept = json.loads((default_index() / "pictures.json").read_text())
    assert len(kept["left out"]) == len(refused)


def test_it_goes_on_after_a_stop(ready, folder, monkeypatch, tmp_path):
    monkeypatch.setattr("selhn.pictures.applying.PICTURES_AT_ONCE", 2)
    step = Progress.step

    def stop(self, *args):
        if self.done >= 4:
            raise KeyboardInterrupt
        step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "step", stop)
        with pytest.raises(KeyboardInterrupt, match="what is done is kept; the same command continues"):
            index_pictures(folder, quiet=True)
    assert len(Index.load(default_index())) == 4
    done = index_pictures(folder, quiet=True)
    assert (done.added, done.plan.unchanged) == (2, 4)


def test_two_at_once(ready, folder, monkeypatch):
    monkeypatch.setattr("selhn.pictures.applying.PATIENCE", 0.0)
    index = index_pictures(folder, quiet=True).index
    (folder / "new.png").write_bytes(encoded(photo(70), "PNG"))
    told = []

    def second():
        try:
            index_pictures(folder, quiet=True)
        except Locked as error:
            told.append(str(error))

    with index.writing():
        other = threading.Thread(target=second)
        other.start()
        other.join()
        index.delete(index.ids()[:1])
    assert "is being written by process" in told[0]
    assert len(Index.load(default_index())) == 5


def test_an_index_of_other_things(ready, folder, tmp_path, monkeypatch):
    Index.create(towers_of(small_model()), tmp_path / "data.index")
    with pytest.raises(SelhnError, match="was not made from pictures"):
        index_pictures(folder, tmp_path / "data.index", quiet=True)
    with pytest.raises(SelhnError, match="was not made from pictures"):
        Library.open(tmp_path / "data.index").vector(folder / "0.png")
    index_pictures(folder, quiet=True)
    with pytest.raises(SelhnError, match="was made with the extractor ready"):
        index_pictures(folder, extractor="timm:resnet18")


def test_another_model_for_an_index_of_the_ready_one(ready, folder):
    """It is not another version of the ready model, so `selhn photos` must not be advised."""
    index_pictures(folder, quiet=True)
    other = towers_of(create_model("rvse", tokenizer=small_model().tokenizer, feature_dim=4, dim=6).eval())
    with pytest.raises(
        SelhnError, match=r"written by another model \(ready, .* not by this one \(rvse, .*--index"
    ):
        Library.open(default_index(), other)


def test_other_weights_are_refused_wherever_they_would_be_used(ready, folder, tmp_path, monkeypatch):
    """Adding, asking with a file and uploading all open the extractor in one place, which compares its identity."""
    index_pictures(folder, quiet=True)
    (tmp_path / "copy.png").write_bytes((folder / "0.png").read_bytes())
    (folder / "new.png").write_bytes(encoded(photo(91), "PNG"))
    stand_in(small_model, lambda: Extractor(TinyBackbone(), cells=2), monkeypatch)
    for use in (
        lambda library: library.apply(library.plan(library.scan(folder)), quiet=True),
        lambda library: library.query(like=str(tmp_path / "copy.png")),
        lambda library: library.vector(folder / "0.png"),
        lambda library: library.prepare(encoded(photo(1))),
        lambda library: library.add(encoded(photo(1))),
    ):
        with pytest.raises(SelhnError, match=r"was made with other features \(tiny, grid 3, raw, \)"):
            use(Library.open(default_index()))
    assert len(Library.open(default_index()).index.search(Library.open(default_index()).query("a dog"))) == 5


def test_a_plan_says_what_would_be_done(ready, folder, tmp_path):
    empty = make_plan(Library.scan(folder), None)
    assert str(empty).startswith("6 pictures to add, 0 to read again, 0 to remove, 0 unchanged\n  add: ")
    index_pictures(folder, quiet=True)
    (folder / "0.png").write_bytes(encoded(photo(90), "PNG"))
    (folder / "2.png").unlink()
    (folder / "notes.txt").write_text("x")
    for number in range(20, 32):
        (folder / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    ready.clear()
    library = Library.open(default_index())
    plan = library.plan(library.scan(folder))
    names = [[item.id for item in plan.add], [item.id for item in plan.replace], plan.delete]
    assert [len(own) for own in names] == [12, 1, 1]
    assert names[1:] == [[picture_id(folder / "0.png")], [picture_id(folder / "2.png")]]
    said = str(plan)
    assert said.splitlines()[0] == "12 pictures to add, 1 to read again, 1 to remove, 4 unchanged"
    assert "  add: and 2 more" in said
    assert "  not pictures, by extension: 1 .txt" in said
    assert not ready
    assert len(Index.load(default_index())) == 6, "a plan changes nothing"
    done = library.apply(plan, quiet=True)
    assert (done.added, done.changed, done.removed, done.plan.unchanged) == (12, 1, 1, 4)


def test_the_tree_is_walked_once(ready, folder, monkeypatch):
    seen = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: seen.append(str(path)) or scandir(path))
    index_pictures(folder, quiet=True)
    assert sorted(name for name in seen if name.startswith(str(folder))) == [
        str(folder),
        str(folder / "trip"),
    ]


def test_the_cache_is_opened_once_and_asked_by_key(ready, folder, monkeypatch):
    """However many blocks of pictures there are: reading all keys for each block would be quadratic."""
    import sqlite3

    opened, asked = [], []
    connect = sqlite3.connect

    def traced(path, **settings):
        opened.append(connect(path, **settings))
        opened[-1].set_trace_callback(asked.append)
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", traced)
    monkeypatch.setattr("selhn.pictures.applying.PICTURES_AT_ONCE", 2)
    index_pictures(folder, quiet=True)
    assert len(opened) == 1
    assert not [text for text in asked if text.startswith("SELECT") and "WHERE key =" not in text]


def test_a_model_of_ones_own(ready, folder, tmp_path):
    done = index_pictures(
        folder, tmp_path / "i", towers=towers_of(small_model()), extractor="efficientnet_lite0", quiet=True
    )
    assert done.index.about == {
        "extractor": "efficientnet_lite0",
        "features": Extractor(TinyBackbone()).identity,
    }
    assert Index.load(tmp_path / "i").ids() == done.index.ids()
    words = Vocabulary.build(["a dog"], 1)
    with pytest.raises(SelhnError, match="rvse takes features of 7 numbers and ready gives 4"):
        index_pictures(
            folder,
            tmp_path / "j",
            towers=towers_of(create_model("rvse", tokenizer=words, feature_dim=7, dim=8)),
        )
    assert not (tmp_path / "j").exists()


def test_a_disk_that_is_unplugged_meanwhile(ready, folder, tmp_path):
    library = Library(index_pictures(folder, quiet=True).index)
    (folder / "0.png").write_bytes(encoded(photo(80), "PNG"))
    (folder / "2.png").unlink()
    plan = library.plan(library.scan(folder))
    folder.rename(tmp_path / "unplugged")
    done = library.apply(plan, quiet=True)
    assert (len(done.index), done.removed, len(done.report.refused)) == (6, 0, 1)
    folder.mkdir()  # where it was mounted
    assert library.apply(plan, quiet=True).removed == 0
    folder.rmdir()
    (tmp_path / "unplugged").rename(folder)
    assert library.apply(library.plan(library.scan(folder)), quiet=True).removed == 1


def test_the_newest_pictures_are_first(ready, folder):
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        os.utime(path, (1e9 - number, 1e9 - number))
    plan = make_plan(Library.scan(folder), None)
    assert [item.id for item in plan.newest_first().add] == sorted(item.id for item in plan.add)


def test_few_pictures_are_written_first(monkeypatch):
    ticks = []
    monkeypatch.setattr("selhn.pictures.extraction.time.monotonic", lambda: len(ticks) / 16)
    pictures = [PictureRegions(PICTURES)] * 300
    blocks = [len(block) for block in in_blocks(pictures, 100, lambda: ticks.append(1))]
    assert blocks == [16, 16, 32, 64, 100, 72]


def test_places_without_pictures(ready, folder, tmp_path):
    index_pictures(folder, quiet=True)
    with pytest.raises(NotFound, match="there is no folder"):
        index_pictures(tmp_path / "nowhere")
    for path in folder.rglob("*.png"):
        path.unlink()
    with pytest.raises(SelhnError, match="holds no pictures"):
        index_pictures(folder)
    assert len(Index.load(default_index())) == 6, "a disk that is not there takes nothing away"


def test_an_index_in_memory_writes_no_file(ready, folder, tmp_path, monkeypatch):
    (folder / "bad.png").write_bytes(b"not a picture")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    library = Library.create(None)
    done = library.apply(library.plan(library.scan(folder)), cache=tmp_path / "cache", quiet=True)
    assert (done.added, done.report_file, len(library.index)) == (6, None, 6)
    assert "left out: bad.png" in str(done)
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "cache"])


def test_asking_in_python_with_a_file_a_path_or_a_picture(ready, folder, tmp_path, monkeypatch):
    index = index_pictures(folder, quiet=True).index
    monkeypatch.chdir(folder)
    with Image.open("0.png") as opened:
        asked = ["0.png", str(folder / "0.png"), folder / "0.png", opened.copy()]
    expected = [hit.id for hit in index.search(image=folder / "0.png")]
    assert expected[0] == str(folder / "0.png")
    assert [[hit.id for hit in index.search(one)] for one in asked] == [expected] * 4
    assert [[hit.id for hit in hits] for hits in index.search_many(asked)] == [expected] * 4
    for name in ("9.png", "nowhere/dog.JPG"):
        with pytest.raises(NotFound, match=f"there is no file {name}: .* text="):
            index.search(name)
    (folder / "a red ball").touch()
    (folder / "red.ball").touch()
    for words in ("a red ball", "a red ball in 0.png", "a red ball.", "red " * 2_000):
        assert index.search(words) == index.search(text=words), words
    (folder / "ball.png").write_bytes(b"not a picture")
    with pytest.raises(SelhnError, match="cannot be read as a picture"):
        index.search("ball.png")


def test_answers_show_themselves_in_a_notebook(ready, folder):
    name = folder / "<b>\"&'.png"
    name.write_bytes((folder / "0.png").read_bytes())
    (folder / "big.png").write_bytes(encoded(photo(1, (900, 300)), "PNG"))
    index = index_pictures(folder, quiet=True).index
    index.update(
        [Item(str(name), captions=("<script>alert(1)</script>",), metadata=index.get(str(name)).metadata)]
    )
    hits = index.search("a red ball", k=50)
    assert isinstance(hits, list)
    assert hits == list(hits) == pickle.loads(pickle.dumps(hits))
    (folder / "trip" / "1.png").unlink()
    page = hits._repr_html_()
    assert page.count("<figure") == 8
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "&lt;b&gt;&quot;&amp;&#x27;.png" in page
    pictures = [b64decode(part.split('"')[0]) for part in page.split("data:image/jpeg;base64,")[1:]]
    assert len(pictures) == 7, "one is gone"
    assert max(max(Image.open(io.BytesIO(one)).size) for one in pictures) == 160
    assert Hits(list(hits) * 10)._repr_html_().count("<figure") == 24
    assert "and 56 more" in Hits(list(hits) * 10)._repr_html_()
    assert "nothing found" in Hits()._repr_html_()
    assert "images" in repr(index)


def test_vectors_to_ask_with(ready, folder):
    index = index_pictures(folder, quiet=True).index
    vector = Library(index).vector(folder / "0.png")
    assert vector.shape == (8,)
    hits = index.search(image=vector, find="image")
    extractor = Library(index).towers.extractor
    regions = extractor([open_picture(folder / "0.png").image])[0]
    same = index.search(image=regions, find="image")
    assert [hit.id for hit in same] == [hit.id for hit in hits], "regions may be asked with too"
    assert hits[0].id == picture_id(folder / "0.png")
    with Image.open(folder / "0.png") as picture:
        for image in (folder / "0.png", str(folder / "0.png"), picture):
            assert index.search(image=image) == hits
        together = index.search_many([folder / "0.png", picture])
        assert [[hit.id for hit in found] for found in together] == [[hit.id for hit in hits]] * 2
    with pytest.raises(NotFound):
        index.search(image=str(folder / "nothing.png"))
    with pytest.raises(NotFound):
        Library(index).vector(folder / "nothing.png")


def test_a_full_disk_leaves_the_index_as_it_was(ready, folder, tmp_path):
    """A limit on the size of files is the nearest thing to a full disk that needs no rights."""
    import resource

    index_pictures(folder, quiet=True)
    before = Index.load(default_index()).ids()
    for number in range(300, 340):
        (folder / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = max(path.stat().st_size for path in (tmp_path / "cache").rglob("*.sqlite"))
    # First the features find no room, then, with all of them known, the index.
    for most, sentence in ((size, "cannot be used .*free some disk space"), (500, "could not be written")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        try:
            with pytest.raises((ValueError, OSError), match=sentence):
                index_pictures(folder, quiet=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        Index.load(default_index()).check()
        assert Index.load(default_index()).ids() == before
        index_pictures(folder, tmp_path / "other", quiet=True)
    signal.signal(signal.SIGXFSZ, handler)
    assert index_pictures(folder, quiet=True).added == 40


def test_a_bomb_takes_no_memory(ready, folder):
    """What claims to be gigapixels is refused by its head; nothing is decoded."""
    import tracemalloc

    for number, side in enumerate((9_000, 60_000, 2**31 - 1)):
        (folder / f"bomb{number}.png").write_bytes(huge_png(side, side))
    tracemalloc.start()
    done = index_pictures(folder, quiet=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (done.added, len(done.report.refused)) == (6, 3)
    assert peak < 50 * 2**20


def files_below(place):
    return {
        path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file() and path.name != "lock"
    }


@pytest.mark.parametrize("number", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_pictures_features_and_indices(ready, folder, tmp_path, number):
    """A sentence or the right answer, and nothing lost, whatever happens to a file."""
    chance, counts = random.Random(7), Counter()
    for place, content in enumerate(mutations(-(-number // 3), seed=7)):
        (folder / f"damaged{place:04}.{chance.choice(['jpg', 'png', 'gif'])}").write_bytes(content)
    done = index_pictures(folder, quiet=True)
    counts["pictures read"], counts["pictures refused"] = done.added - 6, len(done.report.refused)
    assert counts["pictures read"] + counts["pictures refused"] == -(-number // 3)
    ids = done.index.ids()
    assert len(ids) == done.added
    for kind, place in (("features", tmp_path / "cache"), ("index", default_index())):
        whole = files_below(place)
        names = [path for path in whole if path.name != "pictures.json"]
        for _ in range(-(-number // 3)):
            path = chance.choice(names)
            path.write_bytes(mutate(whole[path], chance))
            damaged = files_below(place)
            target = tmp_path / "again" if kind == "features" else default_index()
            try:
                again = index_pictures(folder, target, quiet=True)
                again.index.search("a dog", k=3)
                again.index.check()
            except SelhnError as error:
                counts[f"{kind} refused"] += 1
                assert len(str(error)) > 20  # noqa: PT017
                if kind == "index":
                    assert {p: c for p, c in files_below(place).items() if p.name != "pictures.json"} == {
                        p: c for p, c in damaged.items() if p.name != "pictures.json"
                    }, "what is damaged is not touched"
            else:
                counts[f"{kind} used"] += 1
                assert again.index.ids() == ids
            shutil.rmtree(tmp_path / "again", ignore_errors=True)
            for stray in set(files_below(place)) - set(whole):
                stray.unlink()
            for path, content in whole.items():
                path.write_bytes(content)
    assert Index.load(default_index()).ids() == ids
    assert index_pictures(folder, quiet=True).plan.unchanged == len(ids)
    print(dict(counts))


INDEXING = """
import sys
import torch
torch.set_num_threads(1)
from selhn.pictures import applying
applying.PICTURES_AT_ONCE = 8
from selhn.cli import main
print("begin", flush=True)
main()
"""


@pytest.mark.slow
def test_killed_twenty_times_while_it_indexes(tmp_path):
    """The real command on the example pictures with the ready model, killed at any moment, ends where it would have."""
    need_ready_model()

    def indexing(name):
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / name / "cache")}
        command = [
            sys.executable,
            "-c",
            INDEXING,
            "index",
            str(PICTURES),
            "--index",
            str(tmp_path / name / "i"),
        ]
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "begin\n"
        return child

    start = time.monotonic()
    assert "76 pictures added" in indexing("whole").communicate()[0]
    lasts = time.monotonic() - start
    chance, seen, killed, ended = random.Random(20), [], 0, 0
    while killed < 20:
        name = f"{ended}"
        child = indexing(name)
        try:
            child.wait(chance.uniform(0, lasts))
        except subprocess.TimeoutExpired:
            child.kill()
            killed += 1
        _, error = child.communicate()
        assert child.returncode in (0, -signal.SIGKILL), error
        path = tmp_path / name / "i"
        if Index.exists(path):
            index = Index.load(path)
            index.check()
            assert len(index) >= (seen[-1] if seen else 0), "what was written stays"
            seen.append(len(index))
        if child.returncode == 0:
            assert len(index) == 76
            compare(index, Index.load(tmp_path / "whole" / "i"))
            ended, seen = ended + 1, []
    said = indexing(f"{ended}").communicate()[0]
    compare(Index.load(tmp_path / f"{ended}" / "i"), Index.load(tmp_path / "whole" / "i"))
    print(f"killed {killed} times; {ended} indices were finished between; at the end: {said}")


def compare(found, wanted):
    assert sorted(found.ids()) == sorted(wanted.ids())
    for name in wanted.ids():
        assert found.get(name) == wanted.get(name)
        theirs, ours = (one.store.get([name], vectors=True)[name].vector for one in (wanted, found))
        # Other pictures were in the batch: features are rounded to float16 a little differently.
        assert torch.allclose(ours, theirs, atol=2e-3)


def test_an_index_in_milvus(ready, folder, tmp_path):
    pytest.importorskip("milvus_lite", reason="tests of Milvus need Milvus Lite")
    uri = str(tmp_path / "pictures.db")
    local = index_pictures(folder, quiet=True).index
    first = index_pictures(folder, uri, quiet=True)
    assert (first.added, len(first.index), first.index.location) == (6, 6, uri)
    hits = first.index.search("a dog", k=6)
    assert [hit.id for hit in hits] == [hit.id for hit in local.search("a dog", k=6)]
    (folder / "2.png").unlink()
    (folder / "0.png").write_bytes(encoded(photo(90), "PNG"))
    (folder / "bad.png").write_bytes(b"")
    other = tmp_path / "Pictures2"
    other.mkdir()
    (other / "0.png").write_bytes(encoded(photo(50), "PNG"))
    assert str(index_pictures(other, uri, quiet=True)).startswith("1 picture added, 0 changed")
    again = index_pictures(folder, uri, quiet=True)
    assert (again.added, again.changed, again.removed, again.plan.unchanged) == (0, 1, 1, 4)
    assert len(again.index) == 6
    assert "bad.png" in (default_index().parent / REPORT_FILE).read_text()
    assert str(again).startswith("0 pictures added, 1 changed")


def test_what_lies_in_a_folder_that_cannot_be_looked_into_stays(ready, folder, monkeypatch):
    before = index_pictures(folder, quiet=True).index
    some = next(name for name in before.ids() if "/trip/" in name)
    before.update([Item(some, None, None, ("what I wrote",), {**before.get(some).metadata, "stars": 5})])
    with monkeypatch.context() as patch:
        shut_off(patch, folder / "trip")
        done = index_pictures(folder, quiet=True)
    assert done.removed == 0
    assert str(folder / "trip") in dict(done.report.refused)
    assert index_pictures(folder, quiet=True).index.get(some).captions == ("what I wrote",)


def test_a_device_that_is_not_there(ready, folder):
    with pytest.raises(NotFound, match="there is no device 'gpu' here"):
        index_pictures(folder, device="gpu")


@pytest.mark.parametrize(
    "name", ["transformers:x/y", "transformers:/home", "timm:hf-hub:x/y", "open_clip:a/b"]
)
def test_an_index_has_nothing_downloaded_unless_the_user_asks(ready, folder, tmp_path, monkeypatch, name):
    loaded, path = [], tmp_path / "i"
    index_pictures(folder, path, towers=towers_of(small_model()), extractor=name, quiet=True)
    monkeypatch.setattr(
        "selhn.export.matcher_towers.load_extractor",
        lambda *what: loaded.append(what) or Extractor(TinyBackbone()),
    )
    (folder / "new.png").write_bytes(encoded(photo(9), "PNG"))
    for use in (
        lambda: Library.open(path).towers,
        lambda: Library.open(path).query(like=str(folder / "new.png")),
        lambda: index_pictures(folder, path, quiet=True),
        lambda: Collection(Library.open(path)),
        lambda: Library.open(path, extractor="timm:other").towers,
    ):
        with pytest.raises(SelhnError, match="extractor"):
            use()
    assert len(Library.open(path).index.search("a dog")) == 5
    assert loaded == []
    assert Library.open(path, extractor=Extractor(TinyBackbone())).towers is not None
    assert index_pictures(folder, path, extractor=name, quiet=True).added == 1
    assert Library.open(path, extractor=name).query(like=str(folder / "0.png")).like is not None
