import math

import pytest

from selhn.base.errors import SelhnError
from selhn.diagnose import plateaus
from selhn.losses import InfoNCE, TripletHN


@pytest.mark.parametrize("batch", [32, 128])
def test_they_are_those_of_the_losses(batch):
    values = [one.value for one in plateaus(margin=0.3, batch=batch)]
    hinge, chance = TripletHN(margin=0.3).plateau(batch), InfoNCE().plateau(batch)
    hinges = [hinge, 2 * hinge, 2 * batch * hinge, batch * hinge]
    assert values == pytest.approx([*hinges, chance, 2 * chance, 2 * batch * chance, batch * chance])
    assert not any(one.guessed for one in plateaus(batch=batch))


def test_what_is_given_leaves_out_the_rest():
    assert [one.value for one in plateaus(reduction="mean")] == [0.2, 0.4]
    assert [one.value for one in plateaus(0.1, 64, "sum")] == pytest.approx(
        [12.8, 6.4, 128 * math.log(64), 64 * math.log(64)]
    )
    guessed = list(plateaus(reduction="sum"))
    assert all(one.guessed for one in guessed)
    assert any(math.isclose(one.value, 51.2) and "256 x margin" in one.words for one in guessed)


@pytest.mark.parametrize(
    ("name", "value"), [("margin", 0.0), ("margin", math.nan), ("batch", 1), ("reduction", "total")]
)
def test_what_cannot_be(name, value):
    with pytest.raises(SelhnError, match=name):
        list(plateaus(**{name: value}))
