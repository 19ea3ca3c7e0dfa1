import pytest
from picture_cases import TinyBackbone
from tiny import small_model

from selhn.pictures import Extractor
from selhn.search import Index
from selhn.serve import examples
from selhn.serve.examples import facts, open_examples


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
    monkeypatch.setattr(examples, "PICTURES", tmp_path / "pictures")
    monkeypatch.setattr(examples, "ANNOTATIONS", tmp_path / "pictures" / "annotations.json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return TinyBackbone()


def test_every_example_names_its_licence_and_its_origin():
    known = facts()
    assert len(known) == 76
    licences = [one["license"] for one in known.values()]
    assert (licences.count("CC BY 2.0"), licences.count("CC BY-SA 2.0")) == (47, 29)
    for one in known.values():
        assert ("by-sa" in one["license_url"]) == (one["license"] == "CC BY-SA 2.0")
        assert "flickr" in one["source"]
        assert one["shape"] in ("landscape", "portrait", "square")


def test_they_are_indexed_once(few, tmp_path):
    first = open_examples(small_model(), Extractor(few))
    assert len(first.index) == 3
    assert first.index.path == tmp_path / "cache" / "selhn" / "examples.index"
    record = first.index.get(first.index.ids()[0])
    assert record.metadata["license"].startswith("CC BY")
    assert first.picture(record.id).name == record.id
    few.calls.clear()
    again = open_examples(small_model(), Extractor(few))
    assert not few.calls
    assert again.index.ids() == first.index.ids()


def test_an_index_of_another_model_or_a_half_written_one_is_made_again(few, tmp_path):
    folder = tmp_path / "i"
    open_examples(small_model(), Extractor(few), folder)
    other = small_model("vse_fc")
    assert len(open_examples(other, Extractor(few), folder).index) == 3
    index = Index.load(folder, other)
    index.delete(index.ids()[:1])
    assert len(open_examples(other, Extractor(few), folder).index) == 3
    (folder / "manifest.json").write_text("{}")
    assert len(open_examples(other, Extractor(few), folder).index) == 3
