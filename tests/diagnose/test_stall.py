import random
from itertools import starmap

import pytest
import torch
from torch.nn.functional import normalize

from selhn.base.errors import SelhnWarning
from selhn.diagnose import StallAlarm, Watch, epsilon_of, make_alarm, watched_plateau
from selhn.losses import TripletHN, create_loss

STILL = {"loss_per_anchor": 0.2003, "delta_s": 0.0004, "spread": 0.002}


def first_alarm(alarm, rows):
    for step, row in enumerate(rows):
        said = alarm.update(step, row)
        if said:
            return step, said
    return None


def test_speaks_after_its_patience_and_once():
    alarm = StallAlarm(0.2)
    step, said = first_alarm(alarm, [STILL] * 400)
    assert step == 250
    assert "stalled" in said
    assert "0.2003, plateau 0.2" in said
    assert "TripletSelHN" in said
    assert first_alarm(alarm, [STILL] * 1000) is None


@pytest.mark.parametrize(
    "healthy",
    [
        {**STILL, "loss_per_anchor": 0.15},
        {**STILL, "loss_per_anchor": 0.23},
        {**STILL, "delta_s": 0.05},
    ],
    ids=["loss falls", "loss above the margin", "separated"],
)
def test_silent_on_healthy_runs(healthy):
    assert first_alarm(StallAlarm(0.2), [healthy] * 1000) is None
    assert first_alarm(StallAlarm(0.2), ([STILL] * 200 + [healthy] * 40) * 5) is None


def test_silent_while_the_scores_spread():
    rows = [{**STILL, "spread": 0.001 * 1.01**step} for step in range(1000)]
    assert first_alarm(StallAlarm(0.2), rows) is None


def test_scores_that_only_tremble_do_not_spread():
    rows = [{**STILL, "spread": 1e-6 * 10 ** (step // 50 % 2)} for step in range(1000)]
    step, _ = first_alarm(StallAlarm(0.2), rows)
    assert step == 250


def test_a_plateau_that_ends_and_comes_back():
    rows = [STILL] * 200 + [{**STILL, "delta_s": 0.1}] * 20 + [STILL] * 500
    step, _ = first_alarm(StallAlarm(0.2), rows)
    assert 220 + 250 < step < 220 + 250 + 60


def test_called_off_when_training_has_left_the_plateau_for_good():
    """As T-HN does with BFAN on Flickr8k, after five to ten epochs."""
    alarm, learns = StallAlarm(0.2), {"loss_per_anchor": 0.12, "delta_s": 0.08, "spread": 0.03}
    heard = [
        (step, said)
        for step, row in enumerate([STILL] * 600 + [learns] * 600)
        if (said := alarm.update(step, row))
    ]
    assert [step for step, _ in heard] == [250, pytest.approx(850, abs=5)]
    assert heard[1][1].startswith("Training has recovered: it left the plateau at step 60")
    assert alarm.said is None
    for step, row in enumerate([STILL] * 300, 1200):
        alarm.update(step, row)
    assert "stalled" in alarm.said, "and is ready for another"


def test_a_short_move_does_not_call_it_off():
    alarm, moves = StallAlarm(0.2), {**STILL, "delta_s": 0.1}
    heard = [
        said
        for step, row in enumerate(([STILL] * 300 + [moves] * 100) * 5)
        if (said := alarm.update(step, row))
    ]
    assert len(heard) == 1
    assert alarm.said == heard[0]


def test_silent_on_a_run_that_recovers_from_a_fall():
    falling = [{**STILL, "spread": 0.06 * 0.95**step} for step in range(70)]
    rising = [{**STILL, "spread": falling[-1]["spread"] * 1.012**step} for step in range(400)]
    assert first_alarm(StallAlarm(0.2), falling + rising) is None


def test_batches_that_differ_do_not_hide_a_stall():
    """As on Flickr8k: the scores draw together, but from batch to batch their spread changes by half and more."""
    noise = random.Random(0)
    rows = [
        {
            "loss_per_anchor": 0.2 + 0.001 * noise.random(),
            "delta_s": 0.002 * noise.uniform(0.5, 1.5),
            "spread": 0.002 * 0.999**step * noise.uniform(0.5, 1.5),
        }
        for step in range(1000)
    ]
    step, _ = first_alarm(StallAlarm(0.2), rows)
    assert step < 400


def test_what_a_row_does_not_have_is_not_asked_for():
    step, said = first_alarm(StallAlarm(0.2), [{"loss_per_anchor": 0.2003}] * 400)
    assert step == 250
    assert "scores" not in said.partition("equal")[2]
    unknown = {name: STILL[name] for name in ("delta_s", "spread")}
    step, said = first_alarm(StallAlarm(None), [{**unknown, "loss_per_anchor": 7.0}] * 400)
    assert step == 250
    assert "plateau" not in said
    assert first_alarm(StallAlarm(None), [{**unknown, "delta_s": 0.02}] * 400) is None


def test_a_log_with_few_rows_is_read_as_one_with_many():
    def alarm_after(every):
        alarm, falling = StallAlarm(0.2), lambda step: {**STILL, "loss_per_anchor": 0.2 + 0.1 * 0.98**step}
        return next(step for step in range(0, 2000, every) if alarm.update(step, falling(step)))

    assert abs(alarm_after(10) - alarm_after(1)) < 15


@pytest.mark.parametrize("name", STILL)
def test_a_number_that_is_not_finite_does_not_deafen_it(name):
    alarm = StallAlarm(0.2)
    rows = [STILL] * 400
    rows[10] = {**STILL, name: float("nan")}
    step, _ = first_alarm(alarm, rows)
    assert step == 250
    broken = StallAlarm(0.2)
    assert first_alarm(broken, [STILL] * 100 + [{**STILL, name: float("nan")}] * 1000) is None, (
        "that is no stall"
    )


@pytest.mark.parametrize(("loss", "speaks"), [("selhn", True), ("triplet", False), ("hn", False)])
def test_hears_a_selhn_that_averages_for_ever(loss, speaks):
    """Nothing is mined, and the average falls far below the plateau, as no other loss does with equal scores."""
    made = create_loss(loss)
    alarm = make_alarm(made, steps_per_epoch=50)
    alarm.plateau = watched_plateau(made, 64)
    averages = {"loss_per_anchor": 0.14, "delta_s": 0.006, "spread": 0.05}
    heard = first_alarm(alarm, [averages] * 400)
    assert (heard is not None) == speaks
    assert not speaks or "larger epsilon" in heard[1]


def test_a_loss_of_another_package_tells_the_alarm():
    class Outside(TripletHN):
        separation = 0.05
        remedy = "a walk"
        watches_plateau = False

    alarm = make_alarm(Outside(), steps_per_epoch=50)
    assert (alarm.epsilon, alarm.remedy, epsilon_of(Outside())) == (0.05, "a walk", 0.05)
    assert watched_plateau(Outside(), 64) is None
    alarm = make_alarm(TripletHN(), steps_per_epoch=50)
    assert (alarm.epsilon, alarm.remedy) == (0.01, StallAlarm.remedy)
    assert watched_plateau(TripletHN(), 64) == 0.2


@pytest.fixture(scope="module")
def collapsed():
    """Cosines of a batch in which all embeddings are nearly equal."""
    generator = torch.Generator().manual_seed(0)
    images, texts = (
        normalize(torch.ones(1, 64) / 8 + 0.01 * torch.randn(128, 64, generator=generator), dim=1)
        for _ in range(2)
    )
    return images @ texts.T


@pytest.mark.parametrize("scale", [14.3, 100.0])
@pytest.mark.parametrize("loss", [None, "hn", "selhn"])
def test_hears_a_stall_on_logits_and_says_once_that_they_are_not_cosines(collapsed, scale, loss):
    watch = Watch(loss)
    steps = ((scale * collapsed, 0.2) for _ in range(900))
    with pytest.warns(SelhnWarning) as caught:
        list(starmap(watch, steps))
    said = [str(one.message) for one in caught]
    assert sum("are not cosines" in one for one in said) == 1
    assert sum("Training has stalled" in one for one in said) == 1
    assert watch.alarm.said


def test_silent_on_logits_whose_positives_win():
    """Logits that a margin of 0.2 separates differ by thousandths of a cosine."""
    won = {"loss_per_anchor": 0.1, "delta_s": 0.4, "spread": 1.1, "s_p": 58.6, "s_n": 58.2}
    assert first_alarm(StallAlarm(None), [won] * 900) is None
    assert first_alarm(StallAlarm(None), [{**won, "s_p": 58.2, "s_n": 58.6}] * 900) is not None


def test_a_softmax_loss_may_have_logits(collapsed):
    watch = Watch("infonce")
    watch(100 * torch.eye(8), 0.2)
    assert not watch.said
