from dataclasses import replace

import pytest
import torch
import yaml

from selhn.base.errors import NotFound
from selhn.data import load_data
from selhn.report import retrievals as module
from selhn.report.records import read_runs
from selhn.report.retrievals import Examples, choose, find_examples, first_answers, places


def test_places_count_from_one_and_ties_count_against():
    split = load_data("world", images=100).test.first(2)
    assert split.num_texts == 10
    scores = torch.zeros(2, 10)
    scores[0, 0] = 1
    found = places(scores, split)
    assert found["t2i"].tolist() == [1] + [2] * 9
    assert found["i2t"].tolist() == [1, 6], "of equal scores the five wrong ones come first"


def test_queries_are_spread_over_the_split():
    place = torch.tensor([1, 9] * 50)
    found, missed = choose(place, 2)
    assert all(place[row] == 1 for row in found)
    assert all(place[row] == 9 for row in missed)
    assert (found, missed) == ([24, 74], [25, 75])
    assert choose(torch.tensor([1, 1, 3]), 3) == ([0, 1], [2]), "none is far, so one that is not first"
    assert choose(torch.tensor([0, 0]), 3) == ([], []), "images without a text are no queries"


def test_answers_and_the_first_right_one():
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3])
    right = torch.tensor([False] * 5 + [True, True])
    found = first_answers(scores, right)
    assert [(one.row, one.place, one.right) for one in found][-2:] == [(4, 5, False), (5, 6, True)]
    assert len(found) == 6
    near = first_answers(scores.flip(0), right)
    assert [one.right for one in near] == [True, True, False, False, False]
    tied = first_answers(torch.zeros(3), torch.tensor([True, False, False]))
    assert [one.right for one in tied] == [False, False, True]


def test_the_best_run_is_shown_and_the_others_are_compared(trained, monkeypatch):
    monkeypatch.setattr(module, "MOST_IMAGES", 40)
    runs = read_runs([trained / "hn", trained / "selhn"])
    runs = [replace(runs[0], dev=None, test=None), runs[1]]
    found = find_examples(runs, 2, device="cpu")
    assert isinstance(found, Examples)
    assert found.run.name == "selhn"
    assert found.split.num_images == 40 < found.whole.num_images
    for direction, example in (("t2i", found.found["t2i"][0]), ("i2t", found.missed["i2t"][0])):
        assert [name for name, _ in example.elsewhere] == ["hn"]
        assert sum(answer.place <= 5 for answer in example.answers) == 5
        assert example.place == (1 if direction == "t2i" else example.answers[-1].place)
    assert find_examples(runs, 2, device="cpu").missed == found.missed, "the same every time"
    right, of = found.first["t2i"]
    assert 0 < right < of == 200


def test_runs_that_cannot_be_shown_say_why(trained, write_run):
    begun, other = write_run("begun", level=90), write_run("other", "data.seed=3", level=-20)
    records = read_runs([begun, trained / "selhn"])
    found = find_examples(records, 1, device="cpu")
    assert found.run.name.endswith("selhn")
    assert "kept no weights" in found.in_the_way[records[0].name]
    alone = find_examples(read_runs([begun]), 1, device="cpu")
    assert alone == {"begun": "it has kept no weights, because its first epoch is not finished"}
    differing = read_runs([trained / "selhn", other])
    assert (
        find_examples(differing, 1, device="cpu").in_the_way[differing[1].name]
        == "it was trained on other data"
    )


def test_weights_that_are_broken(trained, monkeypatch):
    monkeypatch.setattr(
        module, "score_split", lambda model, split, **how: torch.full((split.num_images, 9), torch.nan)
    )
    runs = read_runs([trained / "selhn"])
    assert find_examples(runs, 1) == {"selhn": "its weights give scores that are not numbers"}


def test_a_run_without_a_configuration_needs_data(write_run):
    runs = read_runs([write_run("own", configured=False)])
    assert "name some with --data" in find_examples(runs, 1)["own"]


def test_data_that_is_gone(trained, tmp_path):
    runs = read_runs([trained / "selhn"])
    with pytest.raises(NotFound):
        find_examples(runs, 1, data=str(tmp_path / "gone"))
    lost = replace(runs[0].config, data="gone")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(lost.to_dict()))
    moved = [replace(runs[0], folder=tmp_path / "run", config=lost)]
    assert "no file or folder 'gone'" in find_examples(moved, 1)["selhn"]
    with pytest.raises(NotFound, match="abacus"):
        find_examples(runs, 1, device="abacus")
