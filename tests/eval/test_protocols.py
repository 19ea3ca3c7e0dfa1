from pathlib import Path

import numpy as np
import pytest
import torch

from selhn.base.errors import SelhnError
from selhn.eval import Metrics, ensemble, folds, recall

RECORDED = sorted(path.stem for path in Path(__file__).parents[1].glob("golden/eval_fold5_*.npz"))


def recorded_scores(arrays):
    """Scores with the same ranks as the golden ones, and the image of each text.

    Ranks only ask whether a score lies above the best true score of its row and above the true score of its column.
    A file without scores keeps the true ones and, for all others, which of the two they exceed.
    """
    if "scores" in arrays:
        texts = np.arange(arrays["scores"].shape[1])
        return arrays["scores"], texts * len(arrays["scores"]) // len(texts)
    true_scores = arrays["true_scores"].astype(np.float64)  # (T,)
    best_of_row = true_scores.reshape(len(arrays["level_packed"]), -1).max(1)[:, None]
    lower, upper = np.minimum(best_of_row, true_scores), np.maximum(best_of_row, true_scores)
    levels = (arrays["level_packed"][..., None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    scores = np.choose(
        levels.reshape(len(lower), -1)[:, : lower.shape[1]], [lower - 1, (lower + upper) / 2, upper + 1]
    )
    texts = np.arange(len(true_scores))
    image_of_text = texts * len(scores) // len(texts)
    scores[image_of_text, texts] = true_scores
    return scores, image_of_text


def row(direction):
    return [direction[1], direction[5], direction[10], direction.median_rank, direction.mean_rank]


@pytest.mark.parametrize("file", RECORDED)
def test_equals_the_public_five_fold_evaluation(golden, file):
    arrays, config = golden(file)
    scores, image_of_text = recorded_scores(arrays)
    measured = folds(scores, image_of_text, config["folds"])
    np.testing.assert_allclose([row(fold.i2t) for fold in measured], arrays["fold_i2t"], rtol=0, atol=1e-9)
    np.testing.assert_allclose([row(fold.t2i) for fold in measured], arrays["fold_t2i"], rtol=0, atol=1e-9)
    whole = recall(scores, image_of_text)
    np.testing.assert_allclose(row(whole.i2t), arrays["full_i2t"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(row(whole.t2i), arrays["full_t2i"], rtol=0, atol=1e-9)

    mean = Metrics.mean(measured)
    mean_recalls = [np.mean(list(direction.recalls.values())) for direction in (mean.i2t, mean.t2i)]
    summary = [*row(mean.i2t), *row(mean.t2i), *mean_recalls, mean.rsum]
    np.testing.assert_allclose(summary, arrays["mean_metrics"], rtol=0, atol=1e-9)


def test_folds_are_slices_of_the_matrix_whatever_the_order_of_texts():
    rng = np.random.default_rng(0)
    scores, image_of_text = rng.random((12, 40)), rng.permutation(np.arange(40) % 12)
    measured = folds(scores, image_of_text, 3, ks=(1, 2), ties="optimistic", extended=True)
    assert len(measured) == 3
    for n, fold in enumerate(measured):
        texts = np.flatnonzero(image_of_text // 4 == n)
        expected = recall(
            scores[4 * n : 4 * n + 4, texts],
            image_of_text[texts] - 4 * n,
            ks=(1, 2),
            ties="optimistic",
            extended=True,
        )
        assert fold == expected


def test_one_fold_is_the_whole():
    scores, image_of_text = torch.rand(6, 9), torch.arange(9) % 6
    assert folds(scores, image_of_text, 1) == [recall(scores, image_of_text)]


def test_ensemble_averages():
    first, second = torch.rand(3, 4).half(), np.random.default_rng(0).random((3, 4))
    average = ensemble(first, second)
    assert average.dtype == torch.float64
    torch.testing.assert_close(average, (first.double() + torch.from_numpy(second)) / 2)
    weighted = ensemble(first, second, weights=[3, 1])
    torch.testing.assert_close(weighted, 0.75 * first.double() + 0.25 * torch.from_numpy(second))
    assert torch.equal(ensemble(first, second, weights=[0, 1]), torch.from_numpy(second))
    assert ensemble(first).dtype == torch.float32


SCORES = torch.rand(6, 6)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: folds(SCORES, torch.arange(6), 4), "into 4"),
        (lambda: folds(SCORES, torch.arange(6), 0), "into 0"),
        (lambda: folds(SCORES, torch.arange(6) // 2, 2), "images 3 to 5"),
        (lambda: folds(SCORES, torch.arange(5), 2), "6 texts"),
        (lambda: ensemble(), "at least one"),
        (lambda: ensemble(SCORES, SCORES[:, :5]), r"\(6, 5\)"),
        (lambda: ensemble(SCORES, SCORES[0]), r"\(6,\)"),
        (lambda: ensemble(SCORES, SCORES, weights=[1.0]), "2 numbers"),
        (lambda: ensemble(SCORES, SCORES, weights=[1.0, -1.0]), "negative"),
        (lambda: ensemble(SCORES, weights=[float("nan")]), "1 numbers"),
    ],
)
def test_errors_say_what_to_do(call, sentence):
    with pytest.raises(SelhnError, match=sentence):
        call()


@pytest.mark.usefixtures("as_a_user")
def test_parts_of_a_fold_and_of_a_rank_are_refused():
    scores, owners = torch.rand(4, 8), torch.arange(8) // 2
    for wrong in (2.0, 0, 3, True):
        with pytest.raises(SelhnError, match="folds"):
            folds(scores, owners, wrong)
    assert len(folds(scores, owners, np.int64(2))) == 2
    for ks in ((1.5,), (1.0,), ("1",), (True,)):
        with pytest.raises(SelhnError, match="ks"):
            recall(scores, owners, ks=ks)
    assert [*recall(scores, owners, ks=np.array([1, 5])).i2t.recalls] == [1, 5]
