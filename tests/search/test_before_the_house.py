"""Indices that an earlier version wrote open, answer with the same scores, and take additions."""

import shutil
from pathlib import Path

import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.search import Index, Item

BEFORE = Path(__file__).parents[1] / "fixtures" / "before_the_house"


@pytest.fixture
def before(tmp_path):
    shutil.copytree(BEFORE / "index", tmp_path / "i")
    return Index.load(tmp_path / "i")


def test_an_index_of_the_former_ready_model_is_refused_and_told_how_to_make_it_again(tmp_path):
    shutil.copytree(BEFORE / "pictures_index", tmp_path / "i")
    with pytest.raises(
        SelhnError, match=r"another version of the model 'ready'.* make it again with `selhn index`"
    ):
        Index.load(tmp_path / "i")


EXPECTED = {
    "test-scene-000091": 0.250368,
    "test-scene-000038": 0.211379,
    "test-scene-000070": 0.205847,
    "test-scene-000090": 0.199785,
    "test-scene-000079": 0.179271,
}


def test_the_same_answers(before):
    hits = before.search("a red ball", k=5)
    assert [Path(hit.id).name for hit in hits] == list(EXPECTED)
    assert [hit.score for hit in hits] == pytest.approx(list(EXPECTED.values()), abs=2e-6)
    before.check()


def test_changes(before):
    number = len(before)
    before.add([Item("new", vector=torch.ones(before.identity.width), captions=("a red ball",))])
    before.delete([before.ids()[0]])
    opened = Index.load(before.path)
    assert len(opened) == number
    assert opened.search(like="new", k=3) == before.search(like="new", k=3)
    before.compact()
    opened.refresh()
    opened.check()
    assert opened.get("new").captions == ("a red ball",)


def test_what_was_stored(tmp_path):
    index = Index.load(BEFORE / "index")
    assert (len(index), index.num_texts, index.identity.precision, index.generation) == (100, 496, "int8", 5)
    assert index.get("added").metadata == {"year": 2020}
    assert "test-scene-000003" not in index
    assert index.search(like="added", k=2)[0].score == pytest.approx(0.677608, abs=2e-6)
    assert (
        index.search("a red ball", find="text")[0].name
        == "on the street there is a star right of a shiny heart"
    )
