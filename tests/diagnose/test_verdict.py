import csv
import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selhn.diagnose import Plateau, from_rows, judge, plateaus

MARGIN = [Plateau(0.2, "the margin")]
GUESSES = list(plateaus())


def loss_only(rows, times=1.0, every=1):
    return from_rows(
        [{"step": row["step"], "loss": times * row["loss"]} for row in rows if "loss" in row][::every]
    )


def falls_far(verdict):
    """The best that is said of a loss alone: runs that find few pairs can have such a loss too."""
    return verdict.kind == "unclear" and "no sign of a stall" in verdict.why


def slow_stall(loss, steps):
    """A recorded plain loop: batch 64, margin 0.2, summed, a learning rate of 1e-5 (`plain_run`, seed 2)."""
    with (Path(__file__).parent / "logs" / f"{loss}_low_rate.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)][
            : steps // 20
        ]


class TestSlowStalls:
    """A loss that falls towards its plateau has not learnt: 34.5 to 26.7 here, where equal scores give 25.6."""

    @pytest.mark.parametrize("steps", [120, 300, 500, 700, 1000, 1500, 2000])
    @pytest.mark.parametrize("loss", ["thn", "selhn"])
    def test_never_healthy_whatever_is_known(self, loss, steps):
        rows = slow_stall(loss, steps)
        assert judge(from_rows(rows)).kind == ("stalled" if steps > 750 else "unclear")
        for known in (GUESSES, list(plateaus(batch=64, reduction="sum")), list(plateaus(batch=64))):
            assert judge(from_rows(rows), known).kind in ("stalled", "unclear")
            verdict = judge(loss_only(rows), known)
            assert verdict.kind in ("stalled", "unclear")
            assert "lower the learning rate" not in verdict.remedy

    def test_it_says_why_it_does_not_tell(self):
        verdict = judge(loss_only(slow_stall("thn", 700)), list(plateaus(batch=64, reduction="sum")))
        assert "too early to tell" in verdict.why
        assert "128 x margin" in verdict.why
        assert "do not yet score above" in judge(from_rows(slow_stall("thn", 700))).why

    def test_selhn_after_a_hundred_steps(self, plain_run):
        rows = plain_run("selhn", steps=160, lr=5e-4)
        assert rows[-1]["delta_s"] < 0.01
        assert judge(from_rows(rows), MARGIN, mines=False).kind == "unclear"
        assert judge(loss_only(rows), MARGIN).kind == "unclear"

    def test_rsum_that_trembles_about_chance_is_not_overfitting(self):
        rows = slow_stall("thn", 700)
        rows += [
            {"step": 70 * at, "rsum": rsum}
            for at, rsum in enumerate((15, 20, 19, 15, 14, 15, 14, 13, 14, 13), 1)
        ]
        assert judge(from_rows(sorted(rows, key=lambda row: row["step"]))).kind == "unclear"


class TestTrainedRuns:
    """Small runs, trained here: the probe in a plain loop, and then the loss alone."""

    def test_hard_negatives_stall(self, plain_run):
        rows = plain_run("hn")
        verdict = judge(from_rows(rows))
        assert verdict.kind == "stalled"
        assert verdict.since < 100
        assert "delta_s 0.000" in str(verdict)
        assert "TripletSelHN" in verdict.remedy
        assert judge(from_rows(rows), MARGIN).kind == "stalled"

    @pytest.mark.parametrize("times", [1, 2, 2 * 64, 64])
    def test_and_the_loss_alone_shows_it_however_it_is_added_up(self, plain_run, times):
        verdict = judge(loss_only(plain_run("hn"), times), GUESSES)
        assert verdict.kind == "stalled"
        assert ("margin" if times < 3 else f"{times} x margin") in verdict.why

    def test_a_margin_nobody_would_guess(self, plain_run):
        log = loss_only(plain_run("hn"), 1.7)
        verdict = judge(log, GUESSES)
        assert verdict.kind == "unclear"
        assert "not a known plateau" in verdict.why
        assert judge(log, list(plateaus(margin=0.34))).kind == "stalled"

    @pytest.mark.parametrize("loss", ["selhn", "triplet", "infonce", "tal"])
    def test_others_do_not(self, plain_run, loss):
        rows = plain_run(loss)
        assert judge(from_rows(rows)).kind == "healthy"
        for times in (1, 2, 128, 64):
            assert falls_far(judge(loss_only(rows, times), GUESSES)), times

    def test_a_run_cut_off_while_it_collapses(self, plain_run):
        rows = [row for row in plain_run("hn") if row["step"] <= 100]
        assert judge(from_rows(rows)).kind == "collapsing"

    def test_overfitting_by_the_loss_on_held_out_pairs(self, plain_run):
        rows = [{name: row[name] for name in row if name != "dev"} for row in plain_run("selhn", pairs=100)]
        verdict = judge(from_rows(rows))
        assert verdict.kind == "overfitting"
        assert "best epoch" in verdict.remedy
        assert judge(from_rows([row for row in rows if "val_loss" not in row])).kind == "healthy"


def noisy(curve, steps=800, noise=0.03, seed=0):
    draw = random.Random(seed)
    return [
        {"step": step, "loss": curve(step / steps) * (1 + noise * draw.gauss(0, 1))}
        for step in range(1, steps + 1)
    ]


@given(st.floats(0.01, 100), st.integers(0, 100))
def test_a_loss_that_falls_has_no_sign_of_a_stall_whatever_its_unit(unit, seed):
    rows = noisy(lambda x: unit * (0.1 + 0.9 * (1 - x) ** 2), steps=300, seed=seed)
    assert falls_far(judge(from_rows(rows), GUESSES))


@given(st.sampled_from([0.2, 0.4, 51.2, 25.6, 12.8, 6.4]), st.integers(0, 100), st.sampled_from([1, 10]))
def test_a_loss_that_hovers_about_a_plateau_is_not_stuck_on_it(value, seed, every):
    rows = noisy(lambda x: value, noise=0.05, seed=seed)[::every]
    assert judge(from_rows(rows), GUESSES).kind != "stalled"
    rows = noisy(lambda x: value * (1 + 0.3 * 0.99 ** (800 * x)), noise=0.001, seed=seed)[::every]
    assert judge(from_rows(rows), GUESSES).kind == "stalled"


@given(since=st.integers(100, 700), value=st.sampled_from(["nan", "inf"]))
def test_no_number_any_more(since, value):
    rows = [
        *noisy(lambda x: 1 - x / 2, since),
        *({"step": since + i, "loss": float(value)} for i in range(1, 50)),
    ]
    verdict = judge(from_rows(rows))
    assert (verdict.kind, verdict.since) == ("diverging", since + 1)


def test_a_loss_that_grows_or_drifts():
    grows = judge(from_rows(noisy(lambda x: 0.2 + (x > 0.5) * 20 * (x - 0.5))), MARGIN)
    assert grows.kind == "diverging"
    assert 300 < grows.since <= 450
    adrift = noisy(lambda x: 0.25, noise=0.1)
    assert judge(from_rows(adrift), MARGIN).kind == "diverging"
    assert judge(from_rows(adrift), GUESSES).kind == "diverging"
    wanders = noisy(lambda x: 0.246 + 0.02 * math.sin(7 * x), noise=0.05)
    assert judge(from_rows(wanders), MARGIN).kind == "diverging", (
        "it ends below its second quarter, and not its first"
    )
    quiet = judge(from_rows(noisy(lambda x: 0.23, steps=900, noise=0.01)), MARGIN)
    assert quiet.kind == "stalled", "steps too long, or none at all"
    assert "try a learning rate" in quiet.remedy
    learning = sorted(
        [*adrift, *({"step": step, "dev_rsum": step} for step in (200, 400, 800))], key=lambda r: r["step"]
    )
    assert judge(from_rows(learning), MARGIN).kind == "healthy", "RSUM says otherwise"


@pytest.mark.parametrize("times", [1.0, 2 * 64, 64])
def test_a_loss_that_never_gets_below_chance(times):
    # Steps far too long: every few rows the loss is thrown up, and it comes back to chance, not below.
    draw, chance = random.Random(0), math.log(64)
    thrown = [
        chance * (1.004 + 0.003 * draw.random() + (draw.random() < 0.2) * 0.08 * draw.random())
        for _ in range(180)
    ]
    rows = [
        {"step": 10 * at, "loss": times * value} for at, value in enumerate([1.085 * chance] * 8 + thrown)
    ]
    verdict = judge(from_rows(rows), list(plateaus(batch=64)))
    assert verdict.kind in ("diverging", "stalled")
    assert "InfoNCE" in verdict.why
    learnt = [{**row, "loss": row["loss"] * (1 - 0.3 * row["step"] / 1880)} for row in rows]
    assert falls_far(judge(from_rows(learnt), list(plateaus(batch=64))))


def test_overfitting_needs_more_than_one_bad_evaluation():
    falls = noisy(lambda x: 1 - 0.9 * x)

    def with_rsums(*rsums):
        rows = [*falls, *({"step": 100 * at, "rsum": rsum} for at, rsum in enumerate(rsums, 1))]
        return from_rows(sorted(rows, key=lambda row: row["step"]))

    verdict = judge(with_rsums(100, 200, 300, 290, 275, 260, 250, 240))
    assert (verdict.kind, verdict.since) == ("overfitting", 300)
    assert judge(with_rsums(100, 200, 300, 320, 330, 335, 338, 250)).kind == "healthy"
    assert judge(with_rsums(100, 200, 300, 260, 320, 280, 325, 290)).kind == "healthy", (
        "they differ by as much"
    )


def test_a_plateau_that_was_left():
    def row(step):
        still = 100 < step < 500
        return {
            "step": step,
            "loss": 0.2 if still else 0.12,
            "delta_s": 0.002 if still else 0.08,
            "spread": 0.003,
        }

    verdict = judge(from_rows([{**row(step), "s_p": 0.5, "s_n": 0.42} for step in range(800)]), MARGIN)
    assert verdict.kind == "healthy"
    assert any("sat on a plateau from step 1" in one and "and left it" in one for one in verdict.evidence)


def hardly_told_apart(steps, gap, low=0.12, end=0.137):
    """What SelHN leaves behind where it never gets to mine: the average falls, and the hardest negatives stay."""
    loss = lambda x: max(0.21 - 0.18 * x, low + (end - low) * x)  # noqa: E731
    return [
        {"step": s, "loss": loss(s / steps), "delta_s": gap(s / steps), "spread": 0.12}
        for s in range(1, steps)
    ]


def test_scores_that_are_hardly_told_apart_after_a_long_time():
    small = hardly_told_apart(1800, lambda x: 0.014)
    verdict = judge(from_rows(small), [Plateau(0.2, "the margin")], mines=False, remedy="a larger batch")
    assert verdict.kind == "stalled"
    assert "hardly separated" in verdict.why
    assert verdict.remedy == "a larger batch"
    left_late = hardly_told_apart(1800, lambda x: 0.08 if x < 0.2 else 0.005 + (0.008 if x > 0.97 else 0))
    assert judge(from_rows(left_late)).kind == "stalled"
    assert 360 <= judge(from_rows(left_late)).since < 460
    assert judge(from_rows(hardly_told_apart(600, lambda x: 0.014))).kind == "unclear", (
        "early in training all are"
    )
    assert (
        judge(from_rows(hardly_told_apart(1800, lambda x: 0.014 + 0.1 * x, end=0.1)), MARGIN).kind
        == "healthy"
    )


def test_a_loss_alone_that_rises_again():
    rising = loss_only(hardly_told_apart(1800, lambda x: 0.0, low=0.11, end=0.15))
    verdict = judge(rising, MARGIN)
    assert verdict.kind == "unclear"
    assert "rises again" in verdict.why
    falls = loss_only(hardly_told_apart(1800, lambda x: 0.0, low=0.11, end=0.05))
    assert falls_far(judge(falls, MARGIN))


def test_a_loss_alone_on_its_way_from_a_plateau():
    sat = noisy(lambda x: 0.2005 - 0.008 * max(0.0, x - 0.5), noise=0.002)
    assert judge(from_rows(sat), MARGIN).kind == "unclear"
    passes = noisy(lambda x: 0.25 - 0.055 * x, noise=0.002)
    assert judge(from_rows(passes), MARGIN).kind == "unclear", (
        "it is where equal scores would be, whatever it fell"
    )
    left = noisy(lambda x: 0.25 - 0.12 * x, noise=0.002)
    assert falls_far(judge(from_rows(left), MARGIN))


def test_a_stall_in_which_ranks_get_better_is_a_stall():
    """RSUM on dev may creep up while the loss sits on its plateau; other losses are far above by then."""
    still = [{"step": step, "loss": 0.201, "delta_s": 0.001, "spread": 0.001} for step in range(1, 1001)]
    rows = [*still, *({"step": 100 * at, "rsum": 20 * at + 30} for at in range(1, 11))]
    verdict = judge(from_rows(sorted(rows, key=lambda row: row["step"])), MARGIN)
    assert verdict.kind == "stalled"
    assert "RSUM on dev: from 50 to 230" in verdict.evidence


@given(st.floats(0.5, 1000), st.integers(0, 100))
def test_a_loss_of_no_known_plateau_that_ends_where_it_began(unit, seed):
    rows = noisy(lambda x: unit, noise=0.06, seed=seed)
    verdict = judge(from_rows(rows))
    assert verdict.kind == "diverging"
    assert "ends where it began" in verdict.why
    assert judge(from_rows(rows[:100])).kind == "unclear", "too early to tell"
    learning = [*rows, *({"step": step, "rsum": step} for step in (200, 400, 800))]
    assert judge(from_rows(sorted(learning, key=lambda row: row["step"]))).kind == "healthy"


def test_a_loss_that_averages_comes_down_before_it_leaves():
    rows = [{"step": s, "loss": 0.2 + 0.06 * 0.97**s, "delta_s": 0.05 * 0.98**s, "spread": 0.05 * 0.98**s}
            for s in range(1, 200)]  # fmt: skip
    assert judge(from_rows(rows), MARGIN).kind == "collapsing"
    assert judge(from_rows(rows), MARGIN, mines=False).kind == "unclear"
    assert judge(loss_only(rows), MARGIN).kind == "unclear", "too short to tell by the loss alone"


def test_too_little():
    assert judge(from_rows([{"loss": 1.0}] * 5)).kind == "unclear"


def test_words_and_data(plain_run):
    verdict = judge(from_rows(plain_run("hn")), remedy="another loss")
    words = str(verdict).splitlines()
    assert words[0].startswith("stalled since step ")
    assert words[-1] == "What helps: another loss."
    assert json.loads(json.dumps(verdict.to_dict()))["kind"] == "stalled"


def test_a_very_long_log_is_thinned(monkeypatch, plain_run):
    log = from_rows(plain_run("hn"))
    read = []
    monkeypatch.setattr("selhn.diagnose.StallAlarm.update", lambda alarm, step, row: read.append(step))
    judge(log, MARGIN)
    assert len(read) == len(log.steps) > 50
    read.clear()
    monkeypatch.setattr("selhn.diagnose.verdict.MANY_ROWS", 50)
    judge(log, MARGIN)
    assert 25 < len(read) <= 50
    monkeypatch.undo()
    monkeypatch.setattr("selhn.diagnose.verdict.MANY_ROWS", 50)
    assert judge(log, MARGIN).kind == "stalled"


@given(rise=st.floats(0.0, 0.1), level=st.floats(0.0, 0.05), rows=st.integers(760, 1200))
def test_every_slope_of_delta_s_has_a_verdict(rise, level, rows):
    log = from_rows(
        [{"step": i, "loss": 0.3 - 0.2 * i / rows, "delta_s": level + rise * i / rows} for i in range(rows)]
    )
    verdict = judge(log, MARGIN)
    in_the_end = level + 0.95 * rise
    if abs(in_the_end - 0.04) > 0.001:
        assert verdict.kind == ("healthy" if in_the_end > 0.04 else "stalled")


def test_a_mean_below_a_line_that_no_part_of_it_is_below():
    rows = [{"step": 20 * i, "loss": 0.3 - 0.004 * i, "delta_s": 0.0 if i % 2 else 0.08} for i in range(50)]
    assert judge(from_rows(rows)).kind == "healthy"


def falling(rows=5000):
    return [{"step": i, "loss": 0.3 * math.exp(-i / 1000)} for i in range(1, rows + 1)]


def test_a_run_gets_over_a_few_steps_that_overflow():
    rows = falling()
    rows[100]["loss"] = math.inf
    verdict = judge(from_rows(rows))
    assert falls_far(verdict)
    assert verdict.evidence[0] == "1 of 5000 rows have no finite loss"
    rows[-1]["loss"] = math.nan
    assert (judge(from_rows(rows)).kind, judge(from_rows(rows)).since) == ("diverging", 101)
    often = [{**row, "loss": math.nan if row["step"] % 5 == 0 else row["loss"]} for row in falling(999)]
    assert judge(from_rows(often)).kind == "diverging"


def test_an_evaluation_that_is_no_number_decides_nothing():
    rows = [
        {**row, **({"val_loss": row["loss"] + 0.1} if row["step"] % 500 == 0 else {})} for row in falling()
    ]
    rows[999]["val_loss"] = math.nan
    assert falls_far(judge(from_rows(rows)))


@pytest.mark.parametrize("every", [1, 10])
def test_since_when_however_seldom_the_scores_are_logged(monkeypatch, every):
    rows = [{"step": i, "loss": 0.3 - 0.02 * i / 3000} for i in range(1, 3001)]
    for row in rows[every - 1 :: every]:
        row["delta_s"] = 0.2 if row["step"] < 1600 else 0.02
    assert 1550 < judge(from_rows(rows), MARGIN).since < 1800
    monkeypatch.setattr("selhn.diagnose.verdict.MANY_ROWS", 300)
    assert judge(from_rows(rows), MARGIN).kind == "stalled", "thinned, it still has them"


def test_a_log_without_steps_is_spoken_of_by_its_rows():
    verdict = judge(from_rows([{"epoch": epoch, "loss": 0.2} for epoch in range(20)]), MARGIN)
    assert (verdict.kind, verdict.since, verdict.clock) == ("stalled", 1, "row")
    assert str(verdict).startswith("stalled since row 1: ")
    many = [{"loss": 1.0 if row < 300 else math.nan} for row in range(500)]
    assert judge(from_rows(many)).title == "diverging since row 301"


@pytest.mark.parametrize(("end", "kind"), [(148, "healthy"), (145, "healthy"), (138, "overfitting")])
def test_the_best_of_many_evaluations_may_be_luck(end, kind):
    chance = random.Random(0)
    rows = []
    for epoch in range(120):
        rows.append({"step": 5 * epoch, "loss": 0.2 * math.exp(-epoch / 30)})
        level = 150 * min(1, (epoch + 5) / 20) if epoch < 60 else 150 + (end - 150) * (epoch - 60) / 60
        rows.append({"step": 5 * epoch, "rsum": level + chance.gauss(0, 4)})
    rows.append({"step": 5 * 30, "rsum": 163.0})
    assert judge(from_rows(rows)).kind == kind


def test_a_run_that_gets_better_again_has_not_overfitted():
    levels = [150] * 40 + [135] * 60 + [149] * 20
    rows = [{"step": s, "loss": 1 / (s + 1), "rsum": float(level)} for s, level in enumerate(levels)]
    assert judge(from_rows(rows)).kind == "healthy"
    assert judge(from_rows(rows[:-20])).kind == "overfitting"


def test_a_loss_that_hovers_about_its_plateau_has_not_learnt():
    chance = random.Random(0)
    rows = [{"step": 10 * i, "loss": 128 * math.log(64) * chance.gauss(1.02, 0.03)} for i in range(188)]
    verdict = judge(from_rows(rows), list(plateaus(batch=64)))
    assert verdict.kind in ("diverging", "stalled")
    assert min(row["loss"] for row in rows) < 128 * math.log(64)


@pytest.mark.parametrize(
    ("images", "rsum", "kind"),
    [(1000, 200, "unclear"), (1000, 420, "healthy"), (6, 420, "unclear"), (None, 420, "unclear")],
)
def test_a_high_rsum_is_proof_where_positives_do_not_win_yet(images, rsum, kind):
    """As with word dropout in training, or a loss that weighs all negatives; six images reach 350 by chance."""
    rows = [
        {"step": step, "loss": 0.45 - 0.0008 * step, "delta_s": 0.1, "spread": 0.1, "s_p": 0.5, "s_n": 0.502}
        for step in range(1, 235)
    ]
    queries = {"i2t": {"num_queries": images}, "t2i": {"num_queries": 5 * images}} if images else {}
    measured = [{"step": 234, "dev": {"rsum": share * rsum, **queries}} for share in (0.9, 1.0)]
    verdict = judge(from_rows([*rows, *measured]), MARGIN)
    assert verdict.kind == kind
    assert kind == "unclear" or "RSUM on dev is 420" in verdict.why


def a_run(rows=1600, ahead=0.1, rsums=(), images=1000, scale=1.0, loss=lambda x: 0.3 - 0.25 * x, **more):
    """A log with scores whose positives win, and evaluations on so many dev images."""
    found = [
        {"step": step, "loss": loss(step / rows), "s_p": 0.5 * scale, "s_n": (0.5 - ahead) * scale,
         "delta_s": abs(ahead) * scale, "spread": 0.15 * scale, **more}
        for step in range(1, rows + 1)
    ]  # fmt: skip
    queries = {"i2t": {"num_queries": images}, "t2i": {"num_queries": 5 * images}} if images else {}
    for at, rsum in enumerate(rsums, 1):
        found.append({"step": rows * at // len(rsums), "dev": {"rsum": rsum, **queries}})
    return sorted(found, key=lambda row: row["step"])


NEAR_CHANCE = (3.8, 3.1, 4.4, 4.9)


class TestChance:
    """Dev that stays at chance is a verdict of its own."""

    @pytest.mark.parametrize("rsums", [NEAR_CHANCE, NEAR_CHANCE[:3], 3 * NEAR_CHANCE])
    def test_the_training_pairs_are_separated_and_dev_is_at_chance(self, rsums):
        verdict = judge(from_rows(a_run(rsums=rsums)))
        assert verdict.kind == "chance"
        assert "captions and pictures may not belong together" in verdict.why
        assert "chance is 3.19" in verdict.evidence[0]
        assert "every caption belongs to its picture" in verdict.remedy
        assert judge(from_rows(a_run(rsums=(50.0, 120.0, 180.0)))).kind == "healthy"

    def test_nothing_is_separated(self):
        verdict = judge(from_rows(a_run(ahead=-0.1, rsums=NEAR_CHANCE)))
        assert verdict.kind == "chance"
        assert "learnt nothing yet" in verdict.why
        assert "learning rate" in verdict.remedy
        early = judge(from_rows(a_run(rows=400, ahead=-0.1, rsums=NEAR_CHANCE)))
        assert early.kind == "unclear"
        assert "too early to tell" in early.why

    def test_only_the_loss_and_dev(self):
        rows = [{n: row[n] for n in row if n in ("step", "loss", "dev")} for row in a_run(rsums=NEAR_CHANCE)]
        assert judge(from_rows(rows), MARGIN).kind == "chance"

    def test_without_the_number_of_queries(self):
        verdict = judge(from_rows(a_run(rsums=NEAR_CHANCE, images=None)))
        assert verdict.kind == "unclear"
        assert "of how many queries" in verdict.why

    def test_a_stall_is_named_before_chance(self):
        still = a_run(ahead=-0.001, rsums=NEAR_CHANCE, loss=lambda x: 0.2)
        assert judge(from_rows(still), MARGIN).kind == "stalled"

    def test_evaluations_that_vary_about_chance_are_not_overfitting(self):
        rows = a_run(rsums=(3.0, 5.2, 4.9, 3.1, 2.9, 3.0, 2.8, 2.9))
        assert judge(from_rows(rows)).kind == "chance"


@pytest.mark.parametrize("name", ["s_p", "s_n", "delta_s", "spread"])
def test_scores_that_are_no_number_are_diverging(name):
    rows = a_run(rsums=(50.0, 120.0, 180.0))
    for row in rows:
        if row["step"] > 900 and name in row:
            row[name] = math.nan
    verdict = judge(from_rows(rows))
    assert (verdict.kind, verdict.since) == ("diverging", 901)
    assert f"{name} is no longer a number" in verdict.why
    seldom = a_run(rsums=(50.0, 120.0, 180.0))
    for row in seldom:
        if row["step"] % 10 and name in row:
            del row[name]  # logged every ten steps
    assert judge(from_rows(seldom)).kind == "healthy"


def test_a_loss_that_swings_while_dev_is_good():
    swings = a_run(rsums=(300.0,) * 6, loss=lambda x: 0.3 * math.exp(0.5 * math.sin(50 * x)))
    assert judge(from_rows(swings), MARGIN).kind == "healthy"
    alone = [{n: row[n] for n in row if n in ("step", "loss", "dev")} for row in swings]
    assert judge(from_rows(alone), MARGIN).kind in ("healthy", "unclear")


@pytest.mark.parametrize("scale", [14.3, 100.0])
def test_logits_are_judged_in_units_of_their_size(scale):
    still = a_run(ahead=-0.002, scale=scale, loss=lambda x: 0.2 + 0.002 * scale, rsums=NEAR_CHANCE)
    still = [{**row, "spread": 0.002 * scale} if "spread" in row else row for row in still]
    for known in ((), MARGIN):
        verdict = judge(from_rows(still), known)
        assert verdict.kind == "stalled"
        assert any("scores are not cosines" in one for one in verdict.evidence)
    assert judge(from_rows(a_run(scale=scale, rsums=(50.0, 120.0, 180.0)))).kind == "healthy"


@pytest.mark.parametrize("told", [{}, {"batch": 128, "reduction": "sum"}], ids=["not told", "told"])
@pytest.mark.parametrize(
    ("epochs", "steps", "last"),
    [(5, 235, 48), (20, 235, 48), (1, 1133, 104), (3, 1133, 104), (1, 4426, 86), (3, 4426, 86)],
    ids=["f8k", "f8k long", "f30k", "f30k long", "coco", "coco long"],
)
def test_one_small_batch_at_the_end_of_every_epoch(epochs, steps, last, told):
    """A sum that is logged in every step, as VSE++, SCAN and SGRAF do, which keep the last batch."""
    draw = random.Random(0)
    rows = [
        {"step": step, "loss": (51.2 + 14 * math.exp(-step / 40) + 0.02 * draw.random())
         * (last / 128 if step % steps == 0 else 1)}
        for step in range(1, epochs * steps + 1)
    ]  # fmt: skip
    verdict = judge(from_rows(rows), plateaus(**told))
    assert verdict.kind == "stalled"
    assert "256 x margin" in verdict.why
    assert "TripletSelHN" in verdict.remedy


def test_overfitting_is_more_than_the_error_of_a_small_dev_set():
    levels = (100.0, 200.0, 300.0, 305.0, 302.0, 280.0, 285.0, 275.0, 270.0)
    assert judge(from_rows(a_run(rsums=levels, images=100))).kind == "healthy"
    assert judge(from_rows(a_run(rsums=levels, images=5000))).kind == "overfitting"
