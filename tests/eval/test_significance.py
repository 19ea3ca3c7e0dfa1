import numpy as np
import pytest
import torch

from selhn.eval import paired_bootstrap, recall
from selhn.eval.significance import gains, rsum_difference

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
    a, b = noisy_scores(1.0, 0), noisy_scores(1.5, 1)
    gain_i2t, gain_t2i = gains(a, b, IMAGE_OF_TEXT, (1, 5, 10), "pessimistic")
    drawn = torch.randint(60, (60,), generator=torch.Generator().manual_seed(3))
    owner = torch.from_numpy(IMAGE_OF_TEXT)
    texts = torch.cat([(owner == image).nonzero().squeeze(1) for image in drawn])
    expected = 100 * (gain_i2t[drawn].mean() + gain_t2i[texts].mean())
    per_image = torch.stack([gain_i2t, owner.bincount(gain_t2i), owner.bincount()], 1)
    assert float(rsum_difference(per_image[drawn].sum(0, keepdim=True), 60)) == pytest.approx(float(expected))


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
        ({"num_samples": 0}, "draw at least one"),
        ({"ks": ()}, "different whole numbers of at least 1"),
        ({"ties": "none"}, "takes one of"),
        ({"scores_b": np.zeros((60, 299))}, r"scores_b \(60, 299\): score the same images"),
        ({"scores_b": np.zeros(60)}, "scores_b has shape"),
        ({"image_of_text": IMAGE_OF_TEXT[:-1]}, "there are 300 texts"),
    ],
)
def test_errors_say_what_to_do(arguments, sentence):
    scores = noisy_scores(1.0, 0)
    defaults = {"scores_a": scores, "scores_b": scores, "image_of_text": IMAGE_OF_TEXT}
    with pytest.raises(ValueError, match=sentence):
        paired_bootstrap(**(defaults | arguments))
