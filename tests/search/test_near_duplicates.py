from datetime import datetime, timedelta

import pytest
import torch

from selhn.export import towers_of
from selhn.models import create_model
from selhn.search import Index, Item
from selhn.search import near_duplicates as module
from selhn.search.near_duplicates import Alike, near_duplicates
from selhn.text import Vocabulary

WIDTH = 96


def index_of(vectors, facts=None):
    model = create_model("rvse", tokenizer=Vocabulary.build(["a dog"], 1), feature_dim=4, dim=WIDTH).eval()
    index = Index.create(towers_of(model))
    facts = facts or [{}] * len(vectors)
    index.add(
        Item(f"{row:04}", None, vector, (), own)
        for row, (vector, own) in enumerate(zip(vectors, facts, strict=True))
    )
    return index


def near(vector, cosine):
    """Another vector of length 1 with this cosine."""
    across = torch.randn(WIDTH)
    across -= (across @ vector) * vector
    return cosine * vector + (1 - cosine**2) ** 0.5 * across / across.norm()


@pytest.fixture
def vectors():
    torch.manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(300, WIDTH), dim=1)


def test_copies_are_found_wherever_they_are(vectors, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 64)
    vectors[290], vectors[250], vectors[7] = (
        near(vectors[3], 0.96),
        near(vectors[3], 0.99),
        near(vectors[120], 0.9),
    )
    facts = [{"width": row, "height": 10} for row in range(300)]
    shares = []
    assert near_duplicates(index_of(vectors, facts), shares.append) == [
        Alike("copies", ("0290", "0250", "0003"))
    ]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_a_burst_is_less_alike_but_within_seconds(vectors):
    start = datetime(2024, 3, 1, 12)
    vectors[1], vectors[2], vectors[3] = (
        near(vectors[0], 0.85),
        near(vectors[0], 0.85),
        near(vectors[0], 0.85),
    )
    times = [start, start + timedelta(seconds=3), start + timedelta(minutes=3), start + timedelta(days=4)]
    facts = [{"taken": str(time)} for time in times]
    assert near_duplicates(index_of(vectors[:4], facts)) == [Alike("burst", ("0001", "0000"))]
    facts[1] = {"taken": "never"}
    assert near_duplicates(index_of(vectors[:4], facts)) == []


@pytest.mark.parametrize(
    ("seconds", "kind"),
    [((0, 3), "burst"), ((0, 0, 1), "burst"), ((0, 0), "copies"), ((0, 5, 10**8), "copies")],
)
def test_only_what_was_taken_within_seconds_is_a_burst(vectors, seconds, kind):
    start = datetime(2024, 3, 1, 12)
    facts = [{"taken": str(start + timedelta(seconds=own))} for own in seconds]
    (group,) = near_duplicates(index_of(vectors[:1].expand(len(seconds), -1), facts))
    assert (group.kind, len(group.ids)) == (kind, len(seconds))


def test_the_same_as_comparing_all_pairs(vectors):
    """Short vectors only leave out pairs whose whole vectors cannot be near."""
    cosines = [
        module.SAME + (0.002 if row % 2 else -0.002) + 0.0001 * (row % 50) * (-1) ** (row + 1)
        for row in range(300)
    ]
    others = torch.stack([near(vector, cosine) for vector, cosine in zip(vectors, cosines, strict=True)])
    some = torch.cat([vectors, others])
    found = {frozenset(group.ids) for group in near_duplicates(index_of(some))}
    same = (some @ some.T >= module.SAME).triu(1).nonzero().tolist()
    assert found == {frozenset(f"{row:04}" for row in pair) for pair in same}
    assert len(found) == 150


def test_thousands_of_copies_are_one_group(vectors):
    (group,) = near_duplicates(index_of(vectors[:1].expand(3000, -1)))
    assert len(group.ids) == 3000


def test_few_pictures(vectors):
    assert near_duplicates(index_of(vectors[:1])) == []
    assert near_duplicates(index_of(vectors[:0])) == []
