"""What can have happened in a run: an ordered list of rules, each with its evidence and remedy."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from selhn.diagnose.facts import (
    ENOUGH_ROWS,
    FURTHEST,
    NEAR,
    STEADY,
    Facts,
    Still,
    ends,
    from_to,
    told_gradients,
)
from selhn.diagnose.logs import Log, running_means, smoothed
from selhn.diagnose.stall import REMEDY

Kind = Literal["healthy", "stalled", "collapsing", "diverging", "chance", "overfitting", "unclear"]
REMEDIES: dict[Kind, str] = {
    "healthy": "nothing to fix",
    "stalled": REMEDY,
    "collapsing": "if the hardest negatives are mined from the start (T-HN), scores can collapse: train with "
    "TripletSelHN (loss=selhn) instead; with SelHN they recover within an epoch or two",
    "diverging": "lower the learning rate tenfold, clip gradients (clip=2.0), and normalise embeddings with an epsilon",
    "chance": "check that every caption belongs to its picture, in training and on dev (rows that were shuffled or "
    "shifted, ids of another split); if they do, train on more pairs",
    "overfitting": "use the weights of the best epoch; add data, dropout of regions and words, or weight decay",
    "unclear": "log more steps, or name the loss: margin, batch, reduction or column (--margin and so on in the shell)",
}
WRONG_RATE = "try a learning rate ten times higher or lower; and check that the weights are trained at all"
KEEP = "keep training, and judge again"
NOTHING_LEARNT = f"{WRONG_RATE}, and that features and captions differ between pairs and belong together"
MOST_SKIPPED = 0.1
"""Share of rows without a finite loss that is harmless: steps that a gradient scaler skipped."""
MOST_PAIRS = 100_000
"""The largest batch for which a loss that stands still is named as InfoNCE at its plateau."""
SEPARATED = 0.04
"""Runs that learn have at least this delta_s at the end."""
RISEN = 1.05
"""How far above its minimum a loss may end, as a share of it, and still count as fallen."""
LOST = 0.06
"""Overfitting costs more than this share of the best RSUM."""
MANY_EVALUATIONS = 8
LOST_AGAIN = 0.25
"""A training loss that rose by more than this share of its fall before the best epoch does not fit the pairs better."""
FALLEN = 0.95
"""A loss that learns ends below this share of what it was in the first tenth of the log."""


class Finding(NamedTuple):
    """The result of a rule that holds for a run."""

    why: str
    evidence: tuple[str, ...] = ()
    since: float | None = None
    remedy: str | None = None
    """Replaces the default remedy of its kind."""


def no_number(log: Log) -> Finding | None:
    """The loss or a number of the scores is NaN or infinite, in the end or too often for steps that were skipped."""
    lost = {"the loss": log.steps[~np.isfinite(log.loss)], **log.unfit}
    for name, bad in lost.items():
        good = log.steps[np.isfinite(log.columns["loss" if name == "the loss" else name])]
        if len(bad) and (
            not len(good) or bad[-1] > good[-1] or len(bad) > MOST_SKIPPED * (len(bad) + len(good))
        ):
            return Finding(f"{name} is no longer a number", told_gradients(log), bad[0])
    return None


def _on_a_plateau(facts: Facts) -> Finding | None:
    still = next((one for one in facts.stills if one.stalled), None)
    if still is None:
        return None
    why = "the hardest negatives score like the positives, and the scores do not spread"
    if still.plateau is not None:
        why = f"the loss sits where all scores are equal: {still.plateau.words}"
    remedy = facts.remedy or (None if still.plateau is None else still.plateau.remedy)
    return Finding(why, facts.at_end(still), still.since, remedy)


def _hardly_separated(facts: Facts) -> Finding | None:
    """The hardest negatives are still near the positives, but not on a plateau, or just leaving one.

    SelHN can be there: an average that falls while most anchors never get to mine.
    """
    gaps, log, line = facts.gaps, facts.log, SEPARATED * facts.unit
    if gaps is None or not facts.is_long or not ends(gaps)[1] < line or facts.spreads:
        return None
    if facts.unit > 1 and facts.wins:
        return None
    there = np.isfinite(gaps)
    means = smoothed(gaps[there])
    below = np.flatnonzero(means < line)
    if not len(below):  # scores jump: their mean is low only because of where the last tenth begins
        return None
    above = np.flatnonzero(means[: below[-1]] >= line)  # it may be leaving the plateau in its last steps
    since = log.steps[there][above[-1] + 1 if len(above) else 0]
    why = f"positives and their hardest negatives are still hardly separated at {log.when(log.steps[-1])}"
    return Finding(why, facts.at_end(facts.likely or Still(None)), since, facts.remedy)


def _blown_up(facts: Facts) -> Finding | None:
    grows = 0 < 2 * facts.first < facts.last and facts.last > 3 * facts.smooth.min()
    if not grows or facts.dev.is_far_above:
        return None
    low = np.flatnonzero(facts.smooth <= 1.2 * facts.first)
    evidence = (facts.course, *told_gradients(facts.log))
    return Finding("the loss is growing", evidence, facts.log.steps[low[-1] if len(low) else 0])


def _collapsing(facts: Facts) -> Finding | None:
    spread, still = facts.log.columns.get("spread"), facts.likely
    if not facts.mines or spread is None or still is None or still.since is None:
        return None
    first, last = ends(spread)
    before = ends(spread[: max(ENOUGH_ROWS, len(spread) // 2)])[1]
    if not (last < first / 3 and last < before):
        return None
    why = "scores are collapsing, and the hardest negatives already score like the positives"
    return Finding(why, facts.at_end(still), still.since)


def _chance(facts: Facts) -> Finding | None:
    """Dev is at chance after enough steps, or although the training pairs are separated."""
    if not facts.dev.is_chance or not (facts.separates or facts.is_long):
        return None
    evidence = (facts.dev.words, facts.course, *facts.others)
    if facts.separates:
        words = "it fits the training pairs; dev is at chance: captions and pictures may not belong together"
        return Finding(words, evidence)
    return Finding("dev is at chance: it has learnt nothing yet", evidence, remedy=NOTHING_LEARNT)


def _flat(facts: Facts) -> Finding | None:
    """A loss that does not move, at a value that is not a known plateau."""
    mean = facts.half.mean()
    if facts.gaps is not None or facts.seems_to_learn or facts.half.std() > STEADY / 4 * abs(mean):
        return None
    rows = len(facts.half)
    words = f"the loss has stood at {mean:.4g} for the last {rows} rows, which is not a known plateau"
    ways = [f"it is one if 2 x batch x margin, batch x margin, or margin is {mean:.4g}"]
    pairs = round(math.exp(mean)) if 0 < mean < math.log(MOST_PAIRS) else 0
    if pairs > 1 and abs(math.log(pairs) - mean) < STEADY / 4 * mean:
        ways.append(f"or if it is InfoNCE (CLIP's loss) with a batch of {pairs:,}: then it is log {pairs}")
    return Finding(words, tuple(ways))


def _does_not_fall(facts: Facts) -> Finding | None:
    """A loss that stays above its plateau or, if no plateau is known, near its initial value."""
    likely = facts.likely
    if facts.seems_to_learn or facts.sinks or not facts.is_long:
        return None
    *early, third, fourth = facts.quarters
    if likely is None or likely.plateau is None:
        evidence: tuple[str, ...] = (facts.course,)
        words = f"{facts.log.loss_name} ends where it began"
        falls = not fourth + facts.noise > FALLEN * facts.first > 0
    else:
        words = f"the loss stays above {likely.plateau.words}, and does not fall"
        evidence = facts.at_end(likely)
        top = (1 + NEAR if facts.gaps is not None else 1 - NEAR / 4) * likely.plateau.value
        falls = fourth + facts.noise < FALLEN * min(early) or min(third, fourth) <= top
    if falls:
        return None
    return Finding(words, evidence, facts.log.steps[0], WRONG_RATE if facts.is_quiet else None)


def _overfitting(facts: Facts) -> Finding | None:
    """Dev results get worse, and the training loss does not."""
    log = facts.log
    pairs, sign, name = log.dev, 1, "RSUM on dev"
    if not pairs:
        pairs, sign, name = log.dev_loss, -1, "the loss on held-out data"
    if len(pairs) < 4 or not facts.fits:
        return None
    steps, values = (np.array(column) for column in zip(*pairs))
    # One of many evaluations may be the best by chance: the best tenth counts, or if the error of an evaluation is
    # known, the best three in a row.
    counted = bool(log.dev) and facts.dev.chance is not None
    size = max(3 if counted and len(values) >= MANY_EVALUATIONS else 1, len(values) // 10)
    means = running_means(sign * values, size)
    first = int(means.argmax())
    best, later = first + int((sign * values[first : first + size]).argmax()), values[first + size :]
    at_best = facts.smooth[int((log.steps <= steps[best]).sum()) - 1]
    rose = facts.smooth[-1] - at_best > LOST_AGAIN * max(0.0, facts.first - at_best)
    if len(later) < 3 or rose or (log.dev and means[first] < facts.dev.line):
        return None
    # The mean after the best, compared with how much evaluations vary: a single bad one decides nothing.
    # If it improved again at the end, that counts.
    varies = float(np.median(np.abs(np.diff(later))))
    # The number of errors by which the best of so many may be too high.
    luck = 2 + (2 * math.log(len(values) / size)) ** 0.5
    noise = max(varies, luck * facts.dev.error_at(means[first])) if counted else 2.5 * varies
    fall = means[first] - max(sign * later[len(later) // 2 :].mean(), means[-1] if size > 1 else -np.inf)
    if fall < max(LOST * abs(means[first]), noise / size**0.5):
        return None
    evidence = (
        f"{name}: best {values[best]:.4g} at {log.when(steps[best])}, {values[-1]:.4g} at the end",
        from_to(f"{log.loss_name} since then", at_best, facts.smooth[-1]),
    )
    return Finding("it improves on the training data only", evidence, steps[best])


def _rising(facts: Facts) -> Finding | None:
    """Only a loss, which fell and rises again: SelHN does so when it starts to mine; so do failing runs."""
    log = facts.log
    if facts.gaps is not None or log.dev:
        return None
    size = max(2, len(log.loss) // 10)
    means = running_means(log.loss, size)
    lowest = int(means.argmin())
    # How far two such means differ if rows are only noise around a smooth curve.
    noise = 1.5 * np.median(np.abs(np.diff(log.loss, 2))) / (3 * size) ** 0.5
    if means[-1] <= max(RISEN * means[lowest], means[lowest] + 4 * noise):
        return None
    when = log.when(log.steps[lowest + size - 1])
    words = f"the loss rises again from {when} on, and the loss alone does not say why"
    return Finding(words, (from_to(log.loss_name, means[lowest], means[-1]),))


def _not_learnt(facts: Facts) -> Finding | None:
    """Nothing shows yet that it learns, as early in every run; a loss may fall *towards* its plateau."""
    if facts.has_learnt:
        return None
    evidence, remedy = (facts.course, *facts.others), REMEDIES["unclear"]
    low, high = facts.first / FURTHEST, 1.1 * facts.last
    near = [one for one in facts.stills if one.plateau and low < one.plateau.value < high]
    if facts.log.dev and not facts.dev.is_above:
        words, remedy = facts.dev.words, KEEP
    elif facts.ahead is not None:
        words, remedy = "positives do not yet score above their hardest negatives", KEEP
        evidence = facts.at_end(facts.likely or Still(None))
    elif near and near[0].plateau is not None:
        plateau = near[0].plateau
        words = f"a loss may fall to {plateau.words}, where all scores are equal, without learning anything"
        if not plateau.guessed:
            remedy = f"{KEEP}; if it stays there, {plateau.remedy or REMEDY}"
    else:
        words = "a loss may fall this far without learning anything"
    return Finding(f"it is too early to tell: {words}", evidence, remedy=remedy)


def _loss_alone(facts: Facts) -> Finding | None:
    """Only a loss, which fell far: InfoNCE and Triplet fall as far in runs with poor retrieval."""
    if facts.gaps is not None or facts.log.dev:
        return None
    words = "the loss fell below what equal scores can reach: no sign of a stall, but it alone proves nothing"
    return Finding(
        words, (facts.course, *facts.others), remedy="log RSUM on held-out pairs, or the scores with Probe"
    )


def _healthy(facts: Facts) -> Finding:
    log, left = facts.log, facts.stills[0].left if len(facts.stills) == 1 else None
    evidence = [facts.course, *facts.others]
    if left is not None:
        start, end = log.when(left[0]), log.place(left[1])
        evidence.append(f"it sat on a plateau from {start} to {end:,}, and left it")
    if facts.wins:
        words = f"it learns: positives score {facts.ahead:.2g} above their hardest negatives"
        return Finding(words, tuple(evidence))
    if facts.dev.is_good:
        return Finding(f"it learns: RSUM on dev is {facts.dev.level:.4g}, far above chance", tuple(evidence))
    if facts.dev.rises or facts.dev.doubles:
        return Finding("it learns: RSUM on dev rises", tuple(evidence))
    return Finding("it learns: the loss fell below what equal scores can reach", tuple(evidence))


RULES: Sequence[tuple[Kind, Callable[[Facts], Finding | None]]] = (
    ("stalled", _on_a_plateau),
    ("stalled", _hardly_separated),
    ("diverging", _blown_up),
    ("collapsing", _collapsing),
    ("chance", _chance),
    ("unclear", _flat),
    ("stalled", lambda facts: _does_not_fall(facts) if facts.is_quiet else None),
    ("diverging", _does_not_fall),
    ("overfitting", _overfitting),
    ("unclear", _not_learnt),
    ("unclear", _rising),
    ("unclear", _loss_alone),
    ("healthy", _healthy),
)
"""The first rule that holds gives the verdict."""
