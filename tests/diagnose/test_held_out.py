import numpy as np
import pytest
import torch

from selhn.diagnose import from_rows, how_it_ended
from selhn.diagnose.held_out import Chance, HeldOut
from selhn.eval import recall


def dev_log(rsums, images=1000, texts=5000):
    queries = {"i2t": {"num_queries": images}, "t2i": {"num_queries": texts}} if images else {}
    rows = [{"step": 100 * at, "dev": {"rsum": rsum, **queries}} for at, rsum in enumerate(rsums, 1)]
    return HeldOut(from_rows([{"step": 1, "loss": 1.0}, *rows]))


@pytest.mark.parametrize("per_image", [1, 5])
def test_chance_is_what_random_scores_reach(per_image):
    generator, images = torch.Generator().manual_seed(0), 60
    image_of_text = torch.arange(images).repeat_interleave(per_image)
    rsums = [
        recall(torch.rand(images, images * per_image, generator=generator), image_of_text).rsum
        for _ in range(200)
    ]
    chance = Chance.of(images, images * per_image)
    assert np.mean(rsums) == pytest.approx(chance.rsum, rel=0.03)
    assert 0.6 * chance.error < np.std(rsums) < 1.2 * chance.error


@pytest.mark.parametrize(
    ("rsums", "is_chance"),
    [
        ([3.1, 3.8, 2.9, 4.9], True),
        ([3.1, 3.8], False),  # too few evaluations
        ([3.1, 3.8, 9.0, 12.0], False),
        ([3.1, 3.4, 3.6, 3.2, 3.8, 8.0, 40.0], False),  # it begins to learn
        ([90.0, 40.0, 3.2, 3.3, 3.1, 3.2, 3.2], True),  # it lost what it had learnt
    ],
)
def test_at_chance(rsums, is_chance):
    assert dev_log(rsums).is_chance is is_chance


def test_without_the_number_of_queries_nothing_is_guessed():
    unknown = dev_log([3.1, 3.8, 2.9, 4.9], images=None)
    assert not unknown.is_chance
    assert not unknown.is_above
    assert "does not say of how many queries" in unknown.words
    assert dev_log([150.0, 160.0, 170.0], images=None).is_above, (
        "with at least fifty images that is not chance"
    )
    nothing = HeldOut(from_rows([{"step": 1, "loss": 1.0}]))
    assert not any((nothing.is_above, nothing.is_chance, nothing.rises, nothing.is_good))


def test_how_a_run_ended():
    scores = torch.rand(300, 300, generator=torch.Generator().manual_seed(0))
    at_chance, good = recall(scores, torch.arange(300)), recall(torch.eye(300), torch.arange(300))
    assert how_it_ended(None, at_chance) == "at chance", "it was too short for the alarm"
    assert how_it_ended(None, good) == ""
    assert how_it_ended("Training has stalled", good) == "stalled"
