from dataclasses import replace

import pytest
import torch
from model_cases import make_model
from tower_cases import write_towers

from selhn.base.errors import SelhnError
from selhn.data import Data, DenseFeatures, Split
from selhn.eval.stored import digest_of
from selhn.export import calibrate, calibration, write_cutoff
from selhn.export.calibration import content_words, cut_off, find_matches, make_questions
from selhn.search import Fit, Index
from selhn.towers import open_towers

THINGS, PLACES = ("dog", "cat", "car", "ball", "tree"), ("snow", "beach", "street")


def make_split(name, pictures):
    captions, owners = [], []
    for number in range(pictures):
        thing, place = THINGS[number % 5], PLACES[number % 3]
        captions += [
            f"a {thing} in the {place}",
            f"The {place} with {thing}s",
            f"one {thing} , {place} {number}",
        ]
        owners += [number] * 3
    features = DenseFeatures(torch.zeros(pictures, 1, 2))
    return Split(
        name, features, captions, torch.tensor(owners), [f"{name}{number}" for number in range(pictures)]
    )


@pytest.fixture(scope="module")
def data():
    return Data("things", make_split("train", 90), make_split("dev", 45), make_split("test", 15))


def test_words_that_say_the_same():
    assert content_words("Two men are running on a snowy road") == content_words("a man runs, snow, street")
    assert content_words("children riding bikes") == content_words("a kid rides a bike")


def test_a_picture_matches_by_the_words_of_its_captions():
    features = DenseFeatures(torch.zeros(3, 1, 2))
    split = Split(
        "x", features, ["a girl with a dog", "dogs run", "A boy on a bike"], torch.tensor([0, 1, 2]), "abc"
    )
    asked = ["dog", "child", "a girl and her dog", "a dog running in snow with a ball", "the of"]
    expected = [[1, 1, 0], [1, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert find_matches(asked, split).int().tolist() == expected


def test_questions_have_answers_and_have_none(data):
    questions = make_questions(data.dev, data.train, number=20)
    assert set(THINGS) <= {text for text, kind in zip(questions.texts, questions.kinds) if kind == "word"}
    phrases = [text for text, kind in zip(questions.texts, questions.kinds) if kind == "phrase"]
    assert phrases
    assert all(len(content_words(text)) in (2, 3) for text in phrases)
    assert questions.matches[questions.of("sentence")][:20].any(1).all(), (
        "a caption of the split has its picture"
    )
    assert questions.texts == make_questions(data.dev, data.train, number=20).texts


def test_the_cut_off_is_the_lowest_with_this_precision():
    numbers = torch.tensor([[0.9, 0.5, 0.1], [0.8, 0.7, 0.6], [0.3, 0.2, 0.1]])
    matches = torch.tensor([[True, False, False], [True, True, False], [False, False, False]])
    assert cut_off(numbers, matches, 0.9) == pytest.approx(0.8)
    assert cut_off(numbers, matches, 0.3) == pytest.approx(0.3)
    with pytest.raises(SelhnError, match="train the model longer"):
        cut_off(numbers, ~matches & False, 0.5)


def test_what_is_learnt_has_the_precision_that_was_asked_for(data, monkeypatch):
    model = make_model("rvse")

    draw = torch.Generator().manual_seed(0)

    def scores(model, texts, split):
        found = find_matches(texts, split).float()
        known = torch.tensor([0.3 if len(content_words(text)) < 2 else 0.6 for text in texts])[:, None]
        return known * (found + 0.25 * torch.randn(found.shape, generator=draw))

    monkeypatch.setattr(calibration, "score_questions", scores)
    fit = calibrate(model, data, precision=0.8)
    assert fit.model == digest_of(model)
    assert fit.learnt["precision"] == 0.8
    assert fit.counts["dog"] == 36
    assert "90" not in fit.counts
    word, phrase = (fit(text, [0.0, 0.35, 0.6]) for text in ("dog", "dog in the snow"))
    assert word[0] < 0.5 < word[2]
    assert phrase[0] < 0.5 < phrase[2]
    assert word[1] > phrase[1], "a score that is good for a word is not good for a phrase"
    asked, shares = make_questions(data.dev, data.train), []
    for text, own, matches in zip(asked.texts, scores(model, asked.texts, data.dev).tolist(), asked.matches):
        called = torch.tensor(fit(text, own)) >= 0.5
        if called.any():
            shares.append(float(matches[called].float().mean()))
    assert sum(shares) / len(shares) == pytest.approx(0.8, abs=0.05)


def test_a_fit_in_a_towers_folder(tmp_path):
    folder = write_towers(tmp_path / "towers")
    towers = open_towers(folder)
    fit = Fit(towers.digest, {"dog": 3}, (-8.0, 0.5, 0.2, -0.5), (9.0, -0.2, 0.0, 0.5), {"data": "things"})
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    write_cutoff(fit, folder)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"towers.json"}
    assert before.keys() == after.keys()
    index = Index.create(open_towers(folder), tmp_path / "i")
    assert (Index.load(tmp_path / "i").fit, index.fit) == (fit, fit), "the index keeps it with the towers"
    with pytest.raises(SelhnError, match="calibrate the model that was exported"):
        write_cutoff(replace(fit, model="of another"), folder)
