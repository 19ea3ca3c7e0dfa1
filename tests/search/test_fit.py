import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from model_cases import FEATURE_DIM

from selhn.base.errors import Damaged, SelhnError
from selhn.eval.stored import digest_of
from selhn.export import towers_of
from selhn.search import Fit, Index, Query
from selhn.search.fit import FIT_FILE, text_features

FIT = Fit(
    "", {"dog": 1000, "snow": 200, "a": 5000, "word1": 50}, (-8.0, 0.5, 0.2, -0.5), (9.0, -0.2, 0.0, 0.5)
)


def test_a_better_score_and_a_better_known_word_fit_better():
    dog, zebra = (FIT(word, [-1.0, 0.1, 0.4, 1.0]) for word in ("dog", "zebra"))
    assert all(0 <= low < high <= 1 for own in (dog, zebra) for low, high in zip(own, own[1:]))
    assert dog[2] > zebra[2]
    falling = replace(FIT, slope=(-5.0, 0.0, 0.0, 0.0))
    assert falling("dog", [0.9])[0] > falling("dog", [0.1])[0], "never the other way round"


def test_what_is_known_of_a_text():
    features = text_features({"a": 9, "dog": 99}, ["A dog!", "zebra", "..."])
    ten, hundred = np.log([10.0, 100.0])
    expected = [[1, ten, (ten + hundred) / 2, np.log(2.0)], [1, 0, 0, 0], [1, 0, 0, 0]]
    np.testing.assert_allclose(features, expected, rtol=1e-6)


def test_written_and_read(tmp_path):
    FIT.write(tmp_path / FIT_FILE)
    assert Fit.read(tmp_path / FIT_FILE) == FIT
    content = json.loads((tmp_path / FIT_FILE).read_text())
    for wrong in (
        {"slope": [1, 2]},
        {"offset": ["a"] * 4},
        {"counts": {"dog": -1}},
        {"slope": [float("nan")] * 4},
    ):
        (tmp_path / FIT_FILE).write_text(json.dumps(content | wrong))
        with pytest.raises(Damaged):
            Fit.read(tmp_path / FIT_FILE)


def test_only_a_text_alone_is_judged_and_other_items_do_not_matter(index, model, make_item):
    assert (index.fit, index.search("word1")[0].fit) == (None, None), "nothing is known about this model"
    replace(FIT, model=digest_of(model)).write(index.path / FIT_FILE)
    opened = Index.load(index.path)
    hits = opened.search("word1 word2", k=20)
    assert [hit.fit for hit in hits] == pytest.approx(opened.fit("word1 word2", [hit.score for hit in hits]))
    assert [hit.fits for hit in hits] == [hit.fit >= 0.5 for hit in hits]
    assert sorted(hits, key=lambda hit: hit.fit, reverse=True) == hits
    few = Index.create(towers_of(model))
    few.fit = opened.fit
    few.add(make_item(number) for number in range(5))
    known = {hit.id: hit.fit for hit in hits}
    for hit in few.search("word1 word2"):
        assert hit.fit == pytest.approx(known[hit.id], abs=1e-5)
    others = (
        Query("word1", like="item1"),
        Query(like="item1"),
        Query(image=torch.rand(2, FEATURE_DIM)),
        Query("word1", weights={"text": -1}),
        Query("word1", find="text"),
    )
    assert all(hit.fit is None and not hit.fits for found in opened.search_many(others) for hit in found)


def test_the_fit_of_another_model_is_refused(index):
    FIT.write(index.path / FIT_FILE)
    with pytest.raises(SelhnError, match="another model"):
        Index.load(index.path).search("word1")
