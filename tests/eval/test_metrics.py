import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selhn.base.errors import SelhnError
from selhn.eval import DirectionMetrics, Metrics, ranks, recall


def relevance_of(image_of_text, num_images):
    return np.arange(num_images)[:, None] == np.asarray(image_of_text)


def oracle_direction(scores, relevant, ties, ks):
    """One query after another, by sorting; the queries are rows."""
    first, r_precision, map_at_r = [], [], []
    for score, truth in zip(scores, relevant):
        if not truth.any():
            continue
        order = sorted(
            range(len(score)), key=lambda j: (-score[j], truth[j] if ties == "pessimistic" else not truth[j])
        )
        hits = [bool(truth[j]) for j in order]
        num_true = sum(hits)
        first.append(hits.index(True))
        r_precision.append(sum(hits[:num_true]) / num_true)
        map_at_r.append(sum(hits[i] * sum(hits[: i + 1]) / (i + 1) for i in range(num_true)) / num_true)
    return {
        **{f"R@{k}": 100 * np.mean(np.array(first) < k) for k in ks},
        "median_rank": np.floor(np.median(first)) + 1,
        "mean_rank": np.mean(first) + 1,
        "num_queries": len(first),
        "R-Precision": 100 * np.mean(r_precision),
        "mAP@R": 100 * np.mean(map_at_r),
    }


def assert_equals_oracle(metrics, scores, relevant, ties, ks):
    assert metrics.i2t.to_dict() == pytest.approx(oracle_direction(scores, relevant, ties, ks), abs=1e-9)
    assert metrics.t2i.to_dict() == pytest.approx(oracle_direction(scores.T, relevant.T, ties, ks), abs=1e-9)


@st.composite
def problems(draw):
    """Scores with many ties, and the image of each text: some images have no text, some have many."""
    num_images, num_texts = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    levels = st.lists(st.integers(-3, 3), min_size=num_images * num_texts, max_size=num_images * num_texts)
    scores = np.array(draw(levels), dtype=np.float32).reshape(num_images, num_texts)
    owners = st.lists(st.integers(0, num_images - 1), min_size=num_texts, max_size=num_texts)
    return scores, np.array(draw(owners))


# ---------------------------------------------------------------- agreement with others


def test_equals_the_public_evaluations(golden):
    arrays, config = golden("eval_50x250")
    image_of_text = np.arange(arrays["scores"].shape[1]) // config["captions_per_image"]
    metrics = recall(arrays["scores"], image_of_text)
    for direction, rows in ((metrics.i2t, arrays["i2t"]), (metrics.t2i, arrays["t2i"])):
        for row in rows:  # vsepp, SCAN, vse_infty
            assert [direction[1], direction[5], direction[10], direction.median_rank] == row[:4].tolist()
            assert direction.mean_rank == pytest.approx(row[4], abs=1e-9)
    found = ranks(arrays["scores"], image_of_text)
    assert found.i2t.tolist() == arrays["ranks_i2t"].tolist()
    assert found.t2i.tolist() == arrays["ranks_t2i"].tolist()
    assert metrics.rsum == pytest.approx(float(arrays["rsum"]), abs=1e-9)


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
@given(problem=problems())
def test_equals_sorting_one_query_at_a_time(ties, problem):
    scores, image_of_text = problem
    metrics = recall(scores, image_of_text, ks=(1, 2, 5), ties=ties, extended=True)
    assert_equals_oracle(metrics, scores, relevance_of(image_of_text, len(scores)), ties, (1, 2, 5))


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
@given(problem=problems(), seed=st.integers(0, 1000))
def test_equals_sorting_with_several_images_per_text(ties, problem, seed):
    scores, _ = problem
    relevant = np.random.default_rng(seed).random(scores.shape) < 0.4
    relevant[0, 0] = True
    metrics = recall(scores, relevance=relevant, ks=(1, 3), ties=ties, extended=True)
    assert_equals_oracle(metrics, scores, relevant, ties, (1, 3))


# ---------------------------------------------------------------- laws


@given(problem=problems(), seed=st.integers(0, 1000))
def test_order_of_texts_and_images_does_not_matter(problem, seed):
    scores, image_of_text = problem
    rng = np.random.default_rng(seed)
    texts, images = rng.permutation(scores.shape[1]), rng.permutation(scores.shape[0])
    new_index = np.argsort(images)
    shuffled = recall(scores[images][:, texts], new_index[image_of_text[texts]], extended=True)
    expected = recall(scores, image_of_text, extended=True)
    assert shuffled.i2t.to_dict() == pytest.approx(expected.i2t.to_dict(), abs=1e-9)
    assert shuffled.t2i.to_dict() == pytest.approx(expected.t2i.to_dict(), abs=1e-9)


@given(problem=problems())
def test_only_the_order_of_scores_matters(problem):
    scores, image_of_text = problem
    assert recall(np.exp(scores) * 7 - 3, image_of_text) == recall(scores, image_of_text)


@given(problem=problems())
def test_pessimistic_never_exceeds_optimistic(problem):
    low, high = (recall(*problem, ties=ties, extended=True) for ties in ("pessimistic", "optimistic"))
    for pessimist, optimist in ((low.i2t, high.i2t), (low.t2i, high.t2i)):
        assert all(pessimist[k] <= optimist[k] for k in (1, 5, 10))
        assert pessimist.mean_rank >= optimist.mean_rank
        assert pessimist.map_at_r <= optimist.map_at_r + 1e-9


@given(problem=problems())
def test_both_forms_of_ground_truth_agree(problem):
    scores, image_of_text = problem
    relevant = relevance_of(image_of_text, len(scores))
    assert recall(scores, relevance=relevant, extended=True) == recall(scores, image_of_text, extended=True)


def test_a_collapsed_model_finds_nothing():
    constant, image_of_text = torch.full((20, 100), 0.5), torch.arange(100) // 5
    assert recall(constant, image_of_text, extended=True).rsum == 0
    assert recall(constant, image_of_text, extended=True).i2t.map_at_r == 0
    assert recall(constant, image_of_text, ties="optimistic").rsum == 600


# ---------------------------------------------------------------- by hand


def test_images_with_no_one_and_seven_texts():
    image_of_text = [1] + [2] * 7
    scores = torch.zeros(3, 8)
    scores[0] = 2.0  # the image without text beats the true image of every text
    scores[1, 0] = 1.0
    scores[2, 3] = 1.0
    metrics = recall(scores, image_of_text, ks=(1, 2))
    found = ranks(scores, image_of_text)
    assert found.i2t.tolist() == [-1, 0, 0]
    # Texts 0 and 3 lose to image 0 only; the others also tie with the one wrong image that is left.
    assert found.t2i.tolist() == [1, 2, 2, 1, 2, 2, 2, 2]
    assert metrics.i2t.num_queries == 2
    assert metrics.i2t[1] == 100
    assert metrics.t2i.num_queries == 8
    assert metrics.t2i[1] == 0
    assert metrics.t2i[2] == 25


def test_r_precision_and_map_at_r_by_hand():
    # Image 0: three true texts at places 1, 3 and 5, so R = 3 and the places that count are 1 and 3.
    scores = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.5]])
    relevant = torch.tensor([[True, False, True, False, True]])
    metrics = recall(scores, relevance=relevant, extended=True)
    assert metrics.i2t.r_precision == pytest.approx(100 * 2 / 3)
    assert metrics.i2t.map_at_r == pytest.approx(100 * (1 / 1 + 2 / 3) / 3)
    assert metrics.t2i.num_queries == 3  # texts 1 and 3 are true for no image
    assert metrics.t2i.r_precision == 100


def test_ties_in_r_precision_by_hand():
    scores = torch.tensor([[0.9, 0.5, 0.5, 0.1]])
    relevant = torch.tensor([[True, False, True, False]])
    pessimistic = recall(scores, relevance=relevant, extended=True).i2t
    optimistic = recall(scores, relevance=relevant, extended=True, ties="optimistic").i2t
    assert (pessimistic.r_precision, pessimistic.map_at_r) == (50, 50)
    assert (optimistic.r_precision, optimistic.map_at_r) == (100, 100)


def test_infinite_scores_are_ranked():
    inf = float("inf")
    scores = torch.tensor([[-inf, 1.0, -inf], [inf, -inf, -inf]])
    found = ranks(scores, [0, 1, 0])
    assert found.i2t.tolist() == [1, 2]
    assert found.t2i.tolist() == [1, 1, 1]
    extended = recall(scores, [0, 1, 0], extended=True)
    assert_equals_oracle(extended, scores.numpy(), relevance_of([0, 1, 0], 2), "pessimistic", (1, 5, 10))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_type_is_ranked_as_given(dtype):
    scores = torch.randn(30, 60, generator=torch.Generator().manual_seed(0)).to(dtype)
    image_of_text = torch.arange(60) % 30
    assert recall(scores.requires_grad_(), image_of_text) == recall(scores.detach().double(), image_of_text)


def test_a_read_only_array_is_accepted():
    scores = np.eye(3, dtype=np.float32)
    scores.flags.writeable = False
    assert recall(scores, range(3)).rsum == 600


# ---------------------------------------------------------------- the result


def direction(*recalls, **fields):
    return DirectionMetrics(dict(zip((1, 5, 10), recalls)), 1.0, 4.7, 1000, **fields)


def test_prints_like_a_row_of_the_paper():
    metrics = Metrics(direction(77.4, 94.6, 97.3), direction(56.8, 82.8, 89.7))
    assert str(metrics) == "i2t 77.4 94.6 97.3 | t2i 56.8 82.8 89.7 | rsum 498.6"
    best, worst = (Metrics(direction(x, x, x), direction(x, x, x)) for x in (100.0, 0.4))
    assert len(str(best)) == len(str(worst)) == len(str(metrics))


@pytest.mark.parametrize("extended", [False, True])
def test_json_round_trip_is_exact(extended):
    scores = np.random.default_rng(0).random((7, 13))
    metrics = recall(scores, np.arange(13) % 7, extended=extended, ks=(1, 3))
    written = json.loads(json.dumps(metrics.to_dict()))
    assert Metrics.from_dict(written) == metrics
    assert written["i2t"]["R@1"] == metrics.i2t[1]
    assert written["rsum"] == metrics.rsum
    assert ("mAP@R" in written["t2i"]) == extended


def test_mean_averages_and_adds_up_queries():
    mean = Metrics.mean([Metrics(direction(x, x, x), direction(x, x, x)) for x in (10.0, 30.0)])
    assert mean.i2t[5] == 20
    assert mean.t2i.mean_rank == pytest.approx(4.7)
    assert mean.i2t.num_queries == 2000


# ---------------------------------------------------------------- errors

SQUARE = torch.eye(4)
TEXTS = torch.arange(4)
WITH_NAN = SQUARE.clone()
WITH_NAN[2, 3] = float("nan")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: recall(SQUARE), "either"),
        (lambda: recall(SQUARE, TEXTS, relevance=SQUARE > 0), "either"),
        (lambda: recall(SQUARE[0], TEXTS), r"shape \(4,\)"),
        (lambda: recall(SQUARE[:0], TEXTS), r"shape \(0, 4\)"),
        (lambda: recall(SQUARE.long(), TEXTS), "int64"),
        (lambda: recall(WITH_NAN, TEXTS), "NaN"),
        (lambda: recall(SQUARE[:3], TEXTS[:3]), "4 texts"),
        (lambda: recall(SQUARE, TEXTS[:, None]), r"shape \(4, 1\)"),
        (lambda: recall(SQUARE, TEXTS.float()), "float32"),
        (lambda: recall(SQUARE, TEXTS + 1), r"image_of_text\[3\]"),
        (lambda: recall(SQUARE, TEXTS - 1), r"image_of_text\[0\]"),
        (lambda: recall(SQUARE, relevance=SQUARE), "boolean"),
        (lambda: recall(SQUARE, relevance=SQUARE[:2] > 0), "relevance has shape"),
        (lambda: recall(SQUARE, relevance=SQUARE > 9), "true pair"),
        (lambda: recall(SQUARE, TEXTS, ties="random"), "ties"),
        (lambda: ranks(SQUARE, TEXTS, ties="random"), "ties"),
        (lambda: recall(SQUARE, TEXTS, ks=()), "at least 1"),
        (lambda: recall(SQUARE, TEXTS, ks=(0, 1)), "at least 1"),
        (lambda: recall(SQUARE, TEXTS, ks=(5, 5)), "at least 1"),
        (lambda: recall(SQUARE, TEXTS).i2t[3], "R@3"),
        (lambda: Metrics.mean([]), "at least one"),
        (lambda: Metrics.mean([recall(SQUARE, TEXTS), recall(SQUARE, TEXTS, ks=(1,))]), "same ks"),
        (lambda: Metrics.from_dict({"i2t": {}}), "median_rank"),
    ],
)
def test_errors_say_what_to_do(call, sentence):
    with pytest.raises(SelhnError, match=sentence):
        call()
