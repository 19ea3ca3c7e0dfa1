"""A verdict on a finished log, in words: what became of the run, since when, how that is seen, and what helps."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from selhn.diagnose.evidence import ends, from_to, smoothed, told_gradients, told_numbers
from selhn.diagnose.plateau import Plateau
from selhn.diagnose.reading import Clock, Log
from selhn.diagnose.stall import PATIENCE, StallAlarm

Kind = Literal["healthy", "stalled", "collapsing", "diverging", "overfitting", "unclear"]
REMEDIES: dict[Kind, str] = {
    "healthy": "nothing to mend",
    "stalled": "train with TripletSelHN (loss=selhn), which averages over the negatives until they are told apart; or "
    "see all negatives for an epoch first (loss=warmup)",
    "collapsing": "stop and train with TripletSelHN (loss=selhn): mining the hardest negative draws scores together",
    "diverging": "lower the learning rate by ten, clip gradients (clip=2.0), and normalise embeddings with an epsilon",
    "overfitting": "take the weights of the best epoch; more data, dropout of regions and words, or weight decay",
    "unclear": "log more steps, or say what loss it is: --margin, --batch, --reduction, --column",
}
ENOUGH_ROWS = 8
NEAR = 0.02
"""How far from a plateau a loss may be, as a share of it, where nothing but the loss is known."""
STEADY = 0.01
"""A loss that is stuck changes from row to row by less than this share of it; one that learns, by more."""
FAR = 0.1
MANY_ROWS = 100_000
MOST_SKIPPED = 0.1
"""Share of rows without a finite loss that a run gets over: steps that a scaler of gradients left out."""
TOLD_APART = 0.04
"""By which delta_s, in the end, positive and hardest negative are; runs that learn have at least 0.04 there."""
LONG = 3 * PATIENCE
"""Steps after which they ought to be, or twice the patience with a loss, where that is more."""
RISEN = 1.05
"""How far above its lowest a loss may end, as a share of it, and still be said to have fallen."""
FALLEN = 0.95
"""A loss that learns ends below this share of what it was in the first tenth of the log."""


@dataclass(frozen=True)
class Verdict:
    """What became of a run."""

    kind: Kind
    since: int | None
    """The step at which that began, where there is one."""
    why: str
    evidence: tuple[str, ...]
    remedy: str
    clock: Clock = "step"
    """What `since` counts: rows, in a log that does not say at which steps they were written."""

    @property
    def title(self) -> str:
        """The kind, and since when."""
        return self.kind if self.since is None else f"{self.kind} since {self.clock} {self.since:,}"

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.why}.", *(f"  - {one}" for one in self.evidence)]
        return "\n".join([*lines, f"What helps: {self.remedy}."] if self.kind != "healthy" else lines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def judge(
    log: Log,
    plateaus: Iterable[Plateau] = (),
    *,
    epsilon: float = 0.01,
    patience: int = PATIENCE,
    mines: bool = True,
    remedy: str | None = None,
) -> Verdict:
    """The verdict on a log.

    `plateaus` are the values at which its loss may sit; more than one where it is not known which loss that is, and
    then the one that fits. With delta_s and the spread of the scores in the log none is needed. `patience` is how long
    the loss may stand still, `mines` whether it looks at the hardest negatives only, so that scores that draw together
    are not told apart again, and `remedy` what helps against that.
    """
    log = log.thinned(MANY_ROWS)
    finite = np.isfinite(log.loss)
    if not finite[-1] or finite.mean() < 1 - MOST_SKIPPED:
        found = _not_finite(log)
    else:
        found = _judge_finite(log.where(finite), list(plateaus) or [None], epsilon, patience, mines, remedy)
    if not finite.all():
        words = f"{int((~finite).sum())} of {len(finite)} rows have no finite loss"
        found = replace(found, evidence=(words, *found.evidence))
    return replace(found, since=None if found.since is None else log.place(found.since), clock=log.clock)


def _judge_finite(
    log: Log, ways: list[Plateau | None], epsilon: float, patience: int, mines: bool, remedy: str | None
) -> Verdict:
    long = max(LONG, 2 * patience)
    patience = int(min(patience, max(PATIENCE, (log.steps[-1] - log.steps[0]) / 2)))
    if len(log.loss) < ENOUGH_ROWS:
        rows = "1 row is" if len(log.loss) == 1 else f"{len(log.loss)} rows are"
        return _verdict("unclear", None, f"{rows} too few to judge by", ())
    end = ends(log.loss)[1]
    # Of many guesses nearly all are far off, which is seen without reading the log row by row.
    far = [len(ways) > 1 and way is not None and abs(end - way.value) > FAR * way.value for way in ways]
    stills = [
        _Still(way, epsilon, None, None, False) if is_far else _still(log, way, epsilon, patience)
        for way, is_far in zip(ways, far)
    ]
    still = next((one for one in stills if one.stalled), None)
    if still is not None:
        return _stalled(log, still, remedy)
    likely = stills[0] if len(stills) == 1 else _likely(log, stills)
    hardly = _hardly_told_apart(log, likely, long, remedy)
    if hardly is not None:
        return hardly
    for rule in (_blown_up, _collapsing, _flat, _adrift, _overfitting, _rising):
        found = rule(log, likely, patience) if mines or rule is not _collapsing else None
        if found is not None:
            return found
    return _near(log, stills, patience) or _healthy(log, stills)


@dataclass(frozen=True)
class _Still:
    """What the stall alarm makes of a log."""

    plateau: Plateau | None
    epsilon: float
    since: int | None
    """Where the still stretch began that goes on to the end of the log."""
    left: tuple[int, int] | None
    """The last long still stretch that came to an end."""
    stalled: bool


def _still(log: Log, plateau: Plateau | None, epsilon: float, patience: int) -> _Still:
    names = {"loss_per_anchor": "loss", "delta_s": "delta_s", "spread": "spread"}
    columns = {ours: log.columns[name].tolist() for ours, name in names.items() if name in log.columns}
    alarm = StallAlarm(None if plateau is None else plateau.value, epsilon, patience)
    if plateau is None and "delta_s" not in columns:
        return _Still(None, epsilon, None, None, False)
    left, before = None, None
    for number, step in enumerate(log.steps.astype(int).tolist()):
        row = {name: values[number] for name, values in columns.items() if values[number] == values[number]}
        alarm.update(step, row)
        if alarm.since is None and before is not None and step - before >= patience:
            left = (before, step)
        before = alarm.since
    stalled = alarm.since is not None and int(log.steps[-1]) - alarm.since >= patience
    if stalled and "delta_s" not in columns and plateau is not None:
        stalled = _sits(log, plateau, patience)
    return _Still(plateau, epsilon, alarm.since, left, stalled)


def _sits(log: Log, plateau: Plateau, patience: int) -> bool:
    """Whether a loss about which no more is known sits on a plateau, rather than passing by or hovering about it."""
    last = log.loss[log.steps >= log.steps[-1] - patience]
    off = last.mean() / plateau.value - 1
    if last[-max(1, len(last) // 3) :].mean() < (1 - NEAR / 4) * plateau.value:
        return False  # it is on its way down
    if plateau.guessed:
        # A loss that learns may end up anywhere, also near a guess; but it has come a long way down.
        still = last.std() < STEADY / 2 * plateau.value and ends(log.loss)[0] < 3 * plateau.value
        return bool(still and -NEAR / 4 <= off <= NEAR)
    # Stuck scores are never told apart, so the loss does not get below.
    return bool(last.std() < STEADY * plateau.value and -NEAR / 4 <= off <= NEAR)


def _likely(log: Log, stills: list[_Still]) -> _Still | None:
    """The one plateau, of those that are not guesses, above which training begins as it does for hard negatives."""
    first = ends(log.loss)[0]
    near = [one for one in stills if one.plateau and not one.plateau.guessed and 1 < first / one.plateau.value < 1.8]
    return near[0] if len(near) == 1 else None


def _not_finite(log: Log) -> Verdict:
    since = int(log.steps[np.isfinite(log.loss).argmin()])
    return _verdict("diverging", since, "the loss is no longer a number", told_gradients(log))


def _blown_up(log: Log, still: _Still | None, patience: int) -> Verdict | None:
    first, last = ends(log.loss)
    losses = smoothed(log.loss)
    if not (0 < 2 * first < last and last > 3 * losses.min()):
        return None
    low = np.flatnonzero(losses <= 1.2 * first)
    since = int(log.steps[low[-1] if len(low) else 0])
    return _verdict("diverging", since, "the loss grows", (from_to(log.loss_name, first, last), *told_gradients(log)))


def _collapsing(log: Log, still: _Still | None, patience: int) -> Verdict | None:
    if still is None or still.since is None or "spread" not in log.columns:
        return None
    first, last = ends(log.columns["spread"])
    before = ends(log.columns["spread"][: max(ENOUGH_ROWS, len(log.steps) // 2)])[1]
    if not (last < first / 3 and last < before):
        return None
    why = "scores draw together, and the hardest negatives already score like the positives"
    return _verdict("collapsing", still.since, why, _evidence(log, still))


def _hardly_told_apart(log: Log, still: _Still | None, long: int, remedy: str | None) -> Verdict | None:
    """The hardest negatives are still near the positives, on no plateau or on the last steps away from one.

    SelHN can be there: an average that falls while most anchors never get to mine.
    """
    gaps = log.columns.get("delta_s")
    if gaps is None or log.steps[-1] - log.steps[0] < long or not ends(gaps)[1] < TOLD_APART:
        return None
    there = np.isfinite(gaps)
    means = smoothed(gaps[there])
    below = np.flatnonzero(means < TOLD_APART)
    if not len(below):  # scores that jump: their mean is low only by where the last tenth begins
        return None
    above = np.flatnonzero(means[: below[-1]] >= TOLD_APART)  # it may be leaving with its last steps
    since = int(log.steps[there][above[-1] + 1 if len(above) else 0])
    why = f"positives and their hardest negatives are still hardly told apart at {log.when(log.steps[-1])}"
    verdict = _verdict("stalled", since, why, _evidence(log, still or _Still(None, TOLD_APART, None, None, False)))
    return replace(verdict, remedy=remedy or verdict.remedy)


def _rising(log: Log, still: _Still | None, patience: int) -> Verdict | None:
    """A loss, and no more, that fell and rises again: SelHN does when it begins to mine, and so do runs that fail."""
    size = max(2, len(log.loss) // 10)
    means = np.convolve(log.loss, np.ones(size) / size, mode="valid")
    lowest = int(means.argmin())
    # What two such means differ by where rows are nothing but noise about a smooth curve.
    noise = 1.5 * np.median(np.abs(np.diff(log.loss, 2))) / (3 * size) ** 0.5
    if "delta_s" in log.columns or log.dev or means[-1] <= max(RISEN * means[lowest], means[lowest] + 4 * noise):
        return None
    words = f"the loss rises again from {log.when(log.steps[lowest + size - 1])} on, and alone it does not say why"
    return _verdict("unclear", None, words, (from_to(log.loss_name, means[lowest], means[-1]),))


def _adrift(log: Log, still: _Still | None, patience: int) -> Verdict | None:
    """A loss that does not fall: steps so large that nothing is kept.

    Where its plateau is known it stays above that and does not come down, or, if the loss is all that is known, never
    gets below; where it is not, it ends where it began.
    """
    half = log.loss[len(log.loss) // 2 :]
    quiet = half.std() < 3 * STEADY * abs(half.mean())
    if _learns(log) or log.steps[-1] - log.steps[0] < patience:
        return None
    quarters, since = [part.mean() for part in np.array_split(log.loss, 4)], int(log.steps[0])
    if still is not None and still.plateau is not None:
        long = log.steps[-1] - log.steps[0] >= LONG
        above = (long or not quiet) and min(quarters[2:]) > (1 + NEAR) * still.plateau.value
        never_below = "delta_s" not in log.columns and min(quarters[2:]) > (1 - NEAR / 4) * still.plateau.value
        if not (above or never_below) or quarters[3] < FALLEN * min(quarters[:2]):
            return None
        words = f"the loss stays above {still.plateau.words}, and does not fall"
        return _verdict("diverging", since, words, _evidence(log, still))
    first, last = ends(log.loss)
    if not quarters[3] > FALLEN * first > 0:
        return None
    words = f"{log.loss_name} ends where it began"
    return _verdict("stalled" if quiet else "diverging", since, words, (from_to(log.loss_name, first, last),))


def _overfitting(log: Log, still: _Still | None, patience: int) -> Verdict | None:
    """Worse and worse on dev, while the training loss goes on falling."""
    pairs, sign, name = (log.dev, 1, "RSUM on dev") if log.dev else (log.dev_loss, -1, "the loss on held-out data")
    if len(pairs) < 4:
        return None
    steps, values = (np.array(column) for column in zip(*pairs))
    # Of many evaluations one may be the best by luck: the best tenth counts.
    size = max(1, len(values) // 10)
    means = np.convolve(sign * values, np.ones(size) / size, mode="valid")
    first = int(means.argmax())
    best, later = first + int((sign * values[first : first + size]).argmax()), values[first + size :]
    losses = smoothed(log.loss)
    at_best = losses[int((log.steps <= steps[best]).sum()) - 1]
    if len(later) < 3 or losses[-1] >= at_best:
        return None
    # The mean of what came after the best, against what evaluations differ by: one bad one decides nothing. If it has
    # got better again in the end, that counts.
    noise = 2 * np.median(np.abs(np.diff(later)))
    fall = means[first] - max(sign * later[len(later) // 2 :].mean(), means[-1] if size > 1 else -np.inf)
    if fall < max((0.05 if size == 1 else 0.04) * abs(means[first]), noise / size**0.5):
        return None
    evidence = (
        f"{name}: best {values[best]:.4g} at {log.when(steps[best])}, {values[-1]:.4g} at the end",
        from_to(f"{log.loss_name} since then", at_best, losses[-1]),
    )
    return _verdict("overfitting", int(steps[best]), "it gets better on the training data only", evidence)


def _flat(log: Log, still: _Still | None, patience: int) -> Verdict | None:
    """A loss that does not move, at a value that is no plateau we know."""
    half = log.loss[len(log.loss) // 2 :]
    if "delta_s" in log.columns or _learns(log) or half.std() > STEADY / 4 * abs(half.mean()):
        return None
    words = f"the loss has stood at {half.mean():.4g} for the last {len(half)} rows, which is no plateau that is known"
    product = f"it is one where 2 x batch x margin, batch x margin, or margin, is {half.mean():.4g}"
    return _verdict("unclear", None, words, (product,))


def _near(log: Log, stills: list[_Still], patience: int) -> Verdict | None:
    """A loss alone that ends near a plateau: early in a run, where all with a margin pass by, or on its way from it."""
    near = [one.plateau for one in stills if one.since is not None and one.plateau and not one.plateau.guessed]
    short, half = log.steps[-1] - log.steps[0] < patience, log.loss[len(log.loss) // 2 :]
    if not short:  # a loss that falls passes many values, and stays at none
        near = [one for one in near if (abs(half / one.value - 1) < NEAR).mean() > 0.8]
    if "delta_s" in log.columns or not near:
        return None
    words = "is too short to tell whether the loss stays there" if short else "may or may not be leaving it"
    words = f"it ends near {near[0].words}, and {words}"
    return _verdict("unclear", None, words, (from_to(log.loss_name, *ends(log.loss)),))


def _healthy(log: Log, stills: list[_Still]) -> Verdict:
    evidence = [from_to(log.loss_name, *ends(log.loss)), *told_numbers(log)]
    left = next((one.left for one in stills if one.left is not None), None)
    if left is not None and len(stills) == 1:
        evidence.append(f"it sat on a plateau from {log.when(left[0])} to {log.place(left[1]):,}, and left it")
    return _verdict("healthy", None, "it learns", tuple(evidence))


def _stalled(log: Log, still: _Still, remedy: str | None) -> Verdict:
    assert still.since is not None
    if still.plateau is None:
        why = "the hardest negatives score like the positives, and the scores do not spread"
    else:
        why = f"the loss sits where all scores are equal: {still.plateau.words}"
    verdict = _verdict("stalled", still.since, why, _evidence(log, still))
    return replace(verdict, remedy=remedy or verdict.remedy)


def _evidence(log: Log, still: _Still) -> tuple[str, ...]:
    loss = ends(log.loss)[1]
    where = "" if still.plateau is None else f", plateau {still.plateau.value:.4g}"
    gap = ends(log.columns["delta_s"])[1] if "delta_s" in log.columns else None
    told = () if gap is None else (f"delta_s {gap:.4f} at the end, epsilon {still.epsilon:g}",)
    return (f"{log.loss_name} {loss:.4f} at the end{where}", *told, *told_numbers(log))


def _learns(log: Log) -> bool:
    return len(log.dev) > 1 and log.dev[-1][1] > 1.5 * log.dev[0][1]


def _verdict(kind: Kind, since: int | None, why: str, evidence: tuple[str, ...]) -> Verdict:
    return Verdict(kind, since, why, evidence, REMEDIES[kind])
