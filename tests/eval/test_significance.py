import re

import numpy as np
import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.eval import Metrics, folds, paired_bootstrap, recall, recall_intervals
from selhn.eval.significance import drawn_means, hits

IMAGE_OF_TEXT = np.random.default_rng(1).permutation(np.arange(300) // 5)


def noisy_scores(signal, seed):
    scores = np.random.default_rng(seed).normal(size=(60, 300))
    scores[IMAGE_OF_TEXT, np.arange(300)] += signal
    return scores


def test_identical_systems_do_not_differ():
    scores = noisy_scores(1.5, 0)
    comparison = paired_bootstrap(scores, scores.copy(), IMAGE_OF_TEXT)
    assert (comparison.difference, comparison.low, comparison.high, comparison.p_value) == (0, 0, 0, 1)


def test_a_clearly_better_system_is_significant():
    worse, better = noisy_scores(1.0, 0), noisy_scores(2.5, 1)
    comparison = paired_bootstrap(worse, better, IMAGE_OF_TEXT)
    assert comparison.p_value < 0.01
    assert 0 < comparison.low < comparison.difference < comparison.high
    reverse = paired_bootstrap(better, worse, IMAGE_OF_TEXT)
    assert (reverse.difference, reverse.low, reverse.high) == pytest.approx(
        (-comparison.difference, -comparison.high, -comparison.low)
    )


def test_two_runs_of_one_system_are_not_significant():
    comparison = paired_bootstrap(noisy_scores(1.5, 0), noisy_scores(1.5, 1), IMAGE_OF_TEXT)
    assert comparison.low < 0 < comparison.high
    assert comparison.p_value > 0.05


def test_difference_is_that_of_rsum_also_with_distractors():
    image_of_text = IMAGE_OF_TEXT % 40  # images 40 to 59 have no text
    a, b = noisy_scores(1.0, 0), noisy_scores(1.0, 1)
    expected = recall(b, image_of_text, ks=(1, 3)).rsum - recall(a, image_of_text, ks=(1, 3)).rsum
    comparison = paired_bootstrap(a, b, image_of_text, ks=(1, 3), num_samples=10)
    assert comparison.difference == pytest.approx(expected)


def test_a_drawn_image_brings_its_texts():
    """The summed form of the statistic equals asking every query of the drawn images again, one by one."""
    i2t, t2i = hits(noisy_scores(1.0, 0), IMAGE_OF_TEXT, (1, 5), "pessimistic")
    measured, *drawn = drawn_means(i2t, t2i, torch.from_numpy(IMAGE_OF_TEXT), 3, seed=4)
    torch.testing.assert_close(measured, 100 * torch.cat([i2t.mean(0), t2i.mean(0)]))
    times = np.random.default_rng(4).multinomial(60, np.full(60, 1 / 60), size=3)
    for means, counts in zip(drawn, times, strict=True):
        images = np.repeat(np.arange(60), counts)
        texts = np.concatenate([np.flatnonzero(image == IMAGE_OF_TEXT) for image in images])
        torch.testing.assert_close(means, 100 * torch.cat([i2t[images].mean(0), t2i[texts].mean(0)]))


def test_the_seed_decides_everything():
    a, b = noisy_scores(1.0, 0), noisy_scores(1.2, 1)
    first = paired_bootstrap(a, b, IMAGE_OF_TEXT, seed=5, num_samples=300)
    assert first == paired_bootstrap(a, b, IMAGE_OF_TEXT, seed=5, num_samples=300)
    assert first != paired_bootstrap(a, b, IMAGE_OF_TEXT, seed=6, num_samples=300)


def test_prints_one_sentence():
    comparison = paired_bootstrap(noisy_scores(1.0, 0), noisy_scores(2.5, 1), IMAGE_OF_TEXT, num_samples=100)
    assert str(comparison).startswith(f"RSUM differs by {comparison.difference:+.1f} (95 % interval +")
    assert str(comparison).endswith("100 bootstrap samples).")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_samples": 0}, "draw"),
        ({"ks": ()}, "at least 1"),
        ({"ties": "none"}, "ties"),
        ({"scores_b": np.zeros((60, 299))}, "60, 299"),
        ({"scores_b": np.zeros(60)}, "scores_b has shape"),
        ({"image_of_text": IMAGE_OF_TEXT[:-1]}, "300 texts"),
    ],
)
def test_errors_say_what_to_do(arguments, sentence):
    scores = noisy_scores(1.0, 0)
    defaults = {"scores_a": scores, "scores_b": scores, "image_of_text": IMAGE_OF_TEXT}
    with pytest.raises(SelhnError, match=sentence):
        paired_bootstrap(**(defaults | arguments))


def test_intervals_hold_the_recalls_and_narrow_with_more_images():
    scores, measured = noisy_scores(1.5, 0), recall(noisy_scores(1.5, 0), IMAGE_OF_TEXT)
    intervals = recall_intervals(scores, IMAGE_OF_TEXT)
    for direction, own in ((measured.i2t, intervals.i2t), (measured.t2i, intervals.t2i)):
        assert own.keys() == direction.recalls.keys()
        for k, (low, high) in own.items():
            assert 0 <= low < direction[k] < high <= 100
    assert intervals.rsum[0] < measured.rsum < intervals.rsum[1]
    four_times = np.kron(np.eye(4), scores + 100)  # each block ranks as before
    owners = np.concatenate([IMAGE_OF_TEXT + 60 * part for part in range(4)])
    assert recall(four_times, owners).rsum == pytest.approx(measured.rsum)
    low, high = recall_intervals(four_times, owners).rsum
    assert (high - low) / (intervals.rsum[1] - intervals.rsum[0]) == pytest.approx(0.5, abs=0.05)


def test_the_interval_of_text_to_image_recall_is_that_of_a_binomial():
    """With one text per image, queries are independent: the deviation of a recall p of n is sqrt(p (1 - p) / n)."""
    scores = np.random.default_rng(0).normal(size=(400, 400)) + 3 * np.eye(400)
    (low, high), p = (
        recall_intervals(scores, np.arange(400), ks=(1,)).t2i[1],
        recall(scores, np.arange(400)).t2i[1],
    )
    assert (high - low) / 2 == pytest.approx(1.96 * 100 * (p / 100 * (1 - p / 100) / 400) ** 0.5, rel=0.1)


def test_intervals_over_folds_are_those_of_the_mean_over_folds():
    owners = np.arange(300) // 5
    scores = np.random.default_rng(5).normal(size=(60, 300))
    scores[owners, np.arange(300)] += 1.5
    low, high = recall_intervals(scores, owners, folds=5).rsum
    assert low < Metrics.mean(folds(scores, owners, 5)).rsum < high
    with pytest.raises(SelhnError):
        recall_intervals(scores, owners, folds=7)
    with pytest.raises(SelhnError, match="num_samples"):
        recall_intervals(scores, owners, num_samples=0)


def test_intervals_print_as_a_row_under_the_recalls():
    intervals = recall_intervals(noisy_scores(1.5, 0), IMAGE_OF_TEXT, ks=(1, 5))
    number = r"\d+\.\d-\d+\.\d"
    assert re.fullmatch(
        rf"95 %: i2t {number} {number} \| t2i {number} {number} \| rsum {number}", str(intervals)
    )
    assert intervals == recall_intervals(noisy_scores(1.5, 0), IMAGE_OF_TEXT, ks=(1, 5)), "the seed decides"


def test_images_without_texts_are_no_queries_of_an_interval():
    image_of_text = IMAGE_OF_TEXT % 40
    low, high = recall_intervals(noisy_scores(1.0, 0), image_of_text).rsum
    assert low < recall(noisy_scores(1.0, 0), image_of_text).rsum < high
