import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from picture_cases import TinyBackbone, encoded, photo, stand_in

from selhn.export import towers_of
from selhn.models import create_model
from selhn.pictures import Extractor, Library, indexing
from selhn.pictures.indexing import example_facts, open_examples
from selhn.search import Index
from selhn.text import Vocabulary


def small_model(name="rvse"):
    torch.manual_seed(0)
    return create_model(name, tokenizer=Vocabulary.build(["a red dog"], 1), feature_dim=4, dim=8).eval()


@pytest.fixture
def few(monkeypatch, tmp_path):
    """Three of the example pictures; gives what the backbone computed."""
    import json
    import shutil

    from selhn.pictures.examples import ANNOTATIONS, PICTURES

    known = json.loads(ANNOTATIONS.read_text())[:3]
    (tmp_path / "pictures").mkdir()
    for entry in known:
        shutil.copy(PICTURES / entry["file"], tmp_path / "pictures")
        entry["captions"] = ["a red dog"]
    (tmp_path / "pictures" / "annotations.json").write_text(json.dumps(known))
    monkeypatch.setattr(indexing, "PICTURES", tmp_path / "pictures")
    monkeypatch.setattr(indexing, "ANNOTATIONS", tmp_path / "pictures" / "annotations.json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return TinyBackbone()


def test_every_example_names_its_licence_and_its_origin():
    known = example_facts()
    assert len(known) == 76
    licences = [one["license"] for one in known.values()]
    assert (licences.count("CC BY 2.0"), licences.count("CC BY-SA 2.0")) == (47, 29)
    for one in known.values():
        assert ("by-sa" in one["license_url"]) == (one["license"] == "CC BY-SA 2.0")
        assert "flickr" in one["source"]
        assert one["shape"] in ("landscape", "portrait", "square")


def test_they_are_indexed_once(few, tmp_path):
    first = open_examples(None, towers_of(small_model()), Extractor(few))
    assert len(first.index) == 3
    assert first.index.path == tmp_path / "cache" / "selhn" / "examples.index"
    record = first.index.get(first.index.ids()[0])
    assert record.metadata["license"].startswith("CC BY")
    assert first.picture(record.id).name == record.id
    few.calls.clear()
    again = open_examples(None, towers_of(small_model()), Extractor(few))
    assert not few.calls
    assert again.index.ids() == first.index.ids()


def test_an_index_of_another_model_or_a_half_written_one_is_made_again(few, tmp_path):
    folder = tmp_path / "i"
    open_examples(folder, towers_of(small_model()), Extractor(few))
    other = small_model("vse_fc")
    assert len(open_examples(folder, towers_of(other), Extractor(few)).index) == 3
    index = Index.load(folder, towers_of(other))
    index.delete(index.ids()[:1])
    assert len(open_examples(folder, towers_of(other), Extractor(few)).index) == 3
    (folder / "manifest.json").write_text("{}")
    assert len(open_examples(folder, towers_of(other), Extractor(few)).index) == 3


def test_several_who_need_them_at_the_same_time_make_them_once(few, tmp_path, monkeypatch):
    """The first makes them in a folder of its own; the others wait, and none removes what another one reads."""
    made, add = [], Index.add
    monkeypatch.setattr(Index, "add", lambda self, items: made.append(time.sleep(0.3)) or add(self, items))
    model, extractor = small_model(), Extractor(few)
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "left.txt").write_text("of a version that was killed")
    with ThreadPoolExecutor(4) as threads:
        found = list(
            threads.map(lambda _: open_examples(tmp_path / "i", towers_of(model), extractor), range(4))
        )
    assert len(made) == 1
    assert [len(library.index) for library in found] == [3] * 4
    assert found[0].index.path == tmp_path / "i"
    assert found[0].index.search("a red dog")
    assert not (tmp_path / "i" / "left.txt").exists()


def test_they_are_an_index_like_any_other(few, tmp_path, monkeypatch, capsys):
    """`selhn search --index` and `Library.open` read how its features were made."""
    from selhn.cli.index import search

    stand_in(small_model, lambda: Extractor(few), monkeypatch)
    index = open_examples().index
    assert index.about == {"model": "ready", "extractor": "ready", "features": Extractor(few).identity}
    assert Library.open(index.path).vector(tmp_path / "pictures" / index.ids()[0]).shape == (8,)
    capsys.readouterr()
    search(["a red dog"], index.path, like=str(tmp_path / "pictures" / index.ids()[0]))
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_an_index_of_a_version_that_meant_something_else_is_made_again(few, tmp_path):
    path = tmp_path / "i"
    Index.create(
        towers_of(small_model()),
        path,
        keep_towers=False,
        about={"extractor": Extractor(few).identity, "pictures": 3},
    )
    assert len(open_examples(path, towers_of(small_model()), Extractor(few)).index) == 3


def test_a_line_break_in_a_file_name_is_no_line_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "Pictures"
    folder.mkdir()
    (folder / "ok.png").write_bytes(encoded(photo(1), "PNG"))
    forged = "\n0 pictures added, 0 changed, 90 removed\x1b[31m"
    for name in (f"a{forged}.png", f"b.x{forged}"):
        (folder / name).write_bytes(b"no picture")
    library = Library.create(tmp_path / "i", towers_of(small_model()), Extractor(TinyBackbone()))
    plan = library.plan(library.scan(folder))
    for told in (str(plan), str(library.apply(plan, quiet=True))):
        assert r"\n0 pictures added, 0 changed, 90 removed\x1b[31m" in told
        assert "\x1b" not in told
        assert not [line for line in told.split("\n")[1:] if not line.startswith("  ")]
