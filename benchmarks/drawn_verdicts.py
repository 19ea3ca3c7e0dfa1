"""Verdicts on drawn logs of known truth: which kinds of runs does `selhn diagnose` misjudge?

    python benchmarks/drawn_verdicts.py --seeds 0 1

Every log is made from what a run is: how far its scores spread, how far positives score above their hardest negatives,
and how well it finds held-out pairs. Loss, delta_s and recalls follow from that by the formulas of the losses and by
binomial draws, so no curve is shaped to a rule. A seed draws `EACH` logs of every kind in `KINDS`, with other losses,
batches, reductions, lengths, logging intervals and sizes of dev. The rules were tuned on seeds 0 to 6.

Some truths are a decision:
- Scores that never separate, and dev at chance: a stall and "chance" are both right, since both are true.
- A run whose training pairs are separated and whose log has nothing of held-out pairs: nobody can tell from it whether
  it only memorised, so such logs are drawn as learning ones only.
- Captions are shuffled and the number of dev queries is not in the log: 30 may be chance or not, so "unclear" is right.
- A run of a few hundred steps that ends at chance may be on its way: "too early to tell" is right, "healthy" is not.
"""

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drawn_logs import Course, Drawn, Row, path, rows_of
from report import environment, save, table

from selhn.diagnose import Log, Plateau, Verdict, from_rows, judge, plateaus
from selhn.losses import create_loss

EACH = 24
"""Logs of every kind that one seed draws."""
ENOUGH_LOOKS, ENOUGH_EVALUATIONS = 30, 3
SETTINGS = {"tal": {"margin": 0.2, "temperature": 0.05}}
SETS = ((30_000, 48), (145_000, 104), (566_435, 86))
"""Texts of Flickr8k, Flickr30K and COCO, and the last batch of 128 in an epoch."""


def say(run: Drawn, rows: list[Row]) -> Verdict:
    """What is said of it, knowing what `selhn diagnose` would know."""
    log = from_rows(rows)
    if run.names_loss and run.scores:
        made = create_loss(run.loss, **SETTINGS.get(run.loss, {}))
        value = made.plateau(run.batch)
        ways = [] if value is None else [Plateau(value, f"{value:.4g} per anchor")]
        return judge(log, ways, mines=made.mines)
    if run.scores:
        return judge(log)
    return judge(log, plateaus(None, *((run.batch, run.reduction) if run.names_loss else (None, None))))


@dataclass(frozen=True)
class Kind:
    """Runs of one known end."""

    draw: Callable[[Drawn, random.Random], Drawn]
    own: tuple[str, ...] = ()
    """The right verdicts on a failing run; none: it learns."""


def up(chance: random.Random, low: float = 150, high: float = 450) -> Course:
    """An RSUM that rises, fast at first."""
    top = chance.uniform(low, high)
    return path((0, 0.05 * top), (0.2, 0.5 * top), (0.5, 0.85 * top), (1, top))


def learns(run: Drawn, chance: random.Random) -> Drawn:
    """Scores spread, and positives win."""
    wide, wins = chance.uniform(0.1, 0.25), chance.uniform(0.3, 1.2)
    return replace(
        run,
        spread=path((0, 0.04), (chance.uniform(0.05, 0.25), 0.6 * wide), (1, wide)),
        ahead=path((0, -1.6), (0.1, -1.0), (0.3, -0.1), (0.7, 0.8 * wins), (1, wins)),
        rsum=up(chance),
        loss=chance.choice(("selhn", "triplet", "infonce", "tal")),
    )


def memorises(run: Drawn, chance: random.Random) -> Drawn:
    """The same on the training pairs, and chance on dev: captions were shuffled."""
    return replace(learns(run, chance), rsum=None)


def stalls(run: Drawn, chance: random.Random, since: float = 0.08) -> Drawn:
    """As T-HN does: scores draw together, dev creeps up or stays at chance."""
    least = chance.uniform(0.0003, 0.004)
    creeps = path((0, 4), (1, chance.uniform(20, 110))) if chance.random() < 0.5 else None
    return replace(
        run,
        spread=path((0, 0.05), (since, 0.008), (2 * since, 1.5 * least), (1, least)),
        ahead=path((0, -1.6), (1, chance.uniform(-1.3, -0.8))),
        rsum=creeps,
        width=0.5,
    )


def constant(spread: float, ahead: float, **more: Any) -> Callable[[Drawn, random.Random], Drawn]:
    """Nothing changes, as with a learning rate of zero."""
    return lambda run, chance: replace(
        run, spread=path((0, spread), (1, spread)), ahead=path((0, ahead), (1, ahead)), **more
    )


def losses_only(run: Drawn) -> Drawn:
    """A log that has nothing but a loss."""
    return replace(run, scores=False, dev=False)


def times_loss(shape: Callable[[float, random.Random], float]) -> Callable[[list[Row], random.Random], None]:
    """Multiply the losses by a function of the share of the run."""

    def change(rows: list[Row], chance: random.Random) -> None:
        for row in rows:
            for name in ("loss", "loss_per_anchor"):
                if name in row:
                    row[name] *= shape(row["step"] / rows[-1]["step"], chance)

    return change


def becomes(names: Sequence[str], value: float, at: float) -> Callable[[list[Row], random.Random], None]:
    """Numbers of every row from a share of the run on."""

    def change(rows: list[Row], chance: random.Random) -> None:
        for row in rows:
            if row["step"] > at * rows[-1]["step"]:
                row |= {name: value for name in names if name in row}

    return change


def skipped(rows: list[Row], chance: random.Random) -> None:
    """Steps that a gradient scaler skipped."""
    for row in [row for row in rows if "loss" in row][:-1]:
        if chance.random() < 0.02:
            row |= {"loss": math.inf, "loss_per_anchor": math.inf}


def swings(x: float, chance: random.Random) -> float:
    """A loss that is thrown about by a rate that is too large, or by hard batches."""
    return math.exp(0.35 * math.sin(40 * x) + chance.gauss(0, 0.25))


def ragged(run: Drawn, chance: random.Random, told: bool) -> Drawn:
    """A sum that is logged in every step, with one small batch per epoch, on three real sizes."""
    texts, last = chance.choice(SETS)
    epoch = -(-texts // 128)
    epochs = chance.choice((1, 2, 3) if epoch > 1000 else (5, 8, 20))
    return replace(run, batch=128, reduction="sum", every=1, epoch=epoch, last_batch=last, steps=epoch * epochs,
                   scores=False, names_loss=told, dev=False)  # fmt: skip


def drop(at: Sequence[float], factor: float) -> Callable[[float, random.Random], float]:
    """A loss that falls by a step where the learning rate drops."""
    return lambda x, chance: factor ** sum(x > one for one in at)


def restart(x: float, chance: random.Random) -> float:
    """A loss that jumps up at every warm restart, and falls again."""
    return 1 + 0.8 * math.exp(-20 * (x % 0.25))


CHANCE, STALL, BLOWN = ("chance",), ("stalled",), ("diverging",)
NEVER_SEPARATED = ("stalled", "chance")
LOST = ("stalled", "chance", "collapsing", "diverging")
KINDS: dict[str, Kind] = {
    # Failing.
    "shuffled captions, 12 evaluations": Kind(lambda r, c: replace(memorises(r, c), evaluations=12), CHANCE),
    "shuffled captions, 3 evaluations": Kind(lambda r, c: replace(memorises(r, c), evaluations=3), CHANCE),
    "shuffled captions, T-HN": Kind(lambda r, c: replace(memorises(r, c), loss="hn"), CHANCE),
    "shuffled captions, only loss and dev": Kind(
        lambda r, c: replace(memorises(r, c), scores=False, evaluations=c.choice((4, 12))), CHANCE
    ),
    "shuffled captions, small dev": Kind(lambda r, c: replace(memorises(r, c), images=c.choice((50, 60, 80))), CHANCE),
    "shuffled captions, known loss": Kind(lambda r, c: replace(memorises(r, c), names_loss=True), CHANCE),
    "shuffled captions, queries not logged": Kind(
        lambda r, c: replace(memorises(r, c), counts=False), ("unclear",)
    ),
    "positives do not win, dev at chance": Kind(
        lambda r, c: replace(
            r, spread=path((0, 0.05), (1, c.uniform(0.06, 0.15))), ahead=path((0, -1.6), (1, c.uniform(-1.2, -0.8))),
            loss=c.choice(("selhn", "infonce")), width=0.5), CHANCE + STALL),
    "hardly separated, dev at chance": Kind(
        lambda r, c: replace(
            r, spread=path((0, 0.05), (1, c.uniform(0.012, 0.03))), ahead=path((0, -1.6), (1, c.uniform(-1, -0.5))),
            loss="selhn"), NEVER_SEPARATED),
    "delta_s just above 0.04, dev at chance": Kind(
        lambda r, c: replace(
            r, spread=path((0, 0.05), (1, 0.052)), ahead=path((0, -1.2), (1, c.uniform(-0.9, -0.75))),
            loss=c.choice(("selhn", "hn")), width=0.4, jitter=0.05), NEVER_SEPARATED),
    "scores become NaN, the loss does not": Kind(
        lambda r, c: replace(learns(r, c), change=becomes(
            c.sample(("s_p", "s_n", "delta_s", "spread"), c.randint(1, 4)), math.nan, c.uniform(0.3, 0.8))), BLOWN),
    "the loss becomes NaN": Kind(
        lambda r, c: replace(learns(r, c), change=becomes(
            ("loss", "loss_per_anchor"), c.choice((math.nan, math.inf)), c.uniform(0.3, 0.9))), BLOWN),
    "T-HN stalls": Kind(stalls, STALL),
    "T-HN stalls, known loss": Kind(lambda r, c: replace(stalls(r, c), names_loss=True), STALL),
    "T-HN stalls, summed, with scores": Kind(lambda r, c: replace(stalls(r, c), reduction="sum"), STALL),
    "T-HN stalls, logits x 14.3": Kind(lambda r, c: replace(stalls(r, c), scale=14.3), STALL),
    "T-HN stalls, logits x 100": Kind(lambda r, c: replace(stalls(r, c), scale=100.0), STALL),
    "T-HN stalls, logits, known loss": Kind(
        lambda r, c: replace(stalls(r, c), scale=c.choice((14.3, 100.0)), names_loss=True), STALL
    ),
    "T-HN stalls late": Kind(lambda r, c: replace(
        stalls(r, c), spread=path((0, 0.05), (0.2, 0.08), (0.3, 0.08), (0.4, 0.004), (1, c.uniform(0.001, 0.004))),
        steps=max(r.steps, 2000)), STALL),
    "T-HN stalls after a warm-up": Kind(lambda r, c: replace(
        stalls(r, c), spread=path((0, 0.05), (0.1, 0.06), (0.14, 0.06), (0.2, 0.003), (1, 0.002)),
        change=times_loss(lambda x, _: (r.batch - 1) * 0.9 if x < 0.14 else 1)), STALL),
    "T-HN stalls, only the loss": Kind(lambda r, c: losses_only(stalls(r, c)), STALL),
    "T-HN stalls, only loss and dev": Kind(
        lambda r, c: replace(stalls(r, c), scores=False, names_loss=c.random() < 0.5), STALL
    ),
    "T-HN stalls, only a sum, told": Kind(
        lambda r, c: replace(losses_only(stalls(r, c)), reduction="sum", names_loss=True), STALL
    ),
    "T-HN stalls, only a sum, not told": Kind(
        lambda r, c: replace(losses_only(stalls(r, c)), reduction="sum"), STALL
    ),
    "T-HN stalls, small last batches, told": Kind(lambda r, c: ragged(stalls(r, c), c, True), STALL),
    "T-HN stalls, small last batches, not told": Kind(lambda r, c: ragged(stalls(r, c), c, False), STALL),
    "InfoNCE at log B": Kind(lambda r, c: replace(stalls(r, c), loss="infonce", rsum=None), NEVER_SEPARATED),
    "InfoNCE at log B, only the loss, told": Kind(
        lambda r, c: replace(losses_only(stalls(r, c)), loss="infonce", names_loss=True), STALL
    ),
    "collapsing when cut off": Kind(lambda r, c: replace(
        stalls(r, c, since=c.uniform(0.3, 0.45)), steps=c.choice((200, 260, 320)), every=c.choice((1, 2, 5)),
        evaluations=3, rsum=None), ("collapsing", "stalled", "chance")),
    "the loss grows": Kind(lambda r, c: replace(
        memorises(r, c), change=times_loss(lambda x, _: math.exp(12 * max(0.0, x - 0.4)))), BLOWN),
    "the loss grows, only the loss": Kind(lambda r, c: replace(
        losses_only(learns(r, c)), change=times_loss(lambda x, _: math.exp(12 * max(0.0, x - 0.4)))), BLOWN),
    "rate too large": Kind(lambda r, c: replace(
        r, spread=path((0, 0.05), (0.1, 0.3), (1, 0.3)), ahead=path((0, -1.6), (1, -1.5)), jitter=0.5,
        change=times_loss(swings)), LOST),
    "rate too large, only the loss": Kind(lambda r, c: replace(
        losses_only(r), spread=path((0, 0.05), (0.1, 0.3), (1, 0.3)), ahead=path((0, -1.6), (1, -1.5)), jitter=0.5,
        change=times_loss(swings)), BLOWN + STALL),
    "rate of zero": Kind(lambda r, c: constant(c.uniform(0.02, 0.06), -1.7)(r, c), NEVER_SEPARATED),
    "rate of 1e-8, InfoNCE": Kind(
        lambda r, c: constant(c.uniform(0.02, 0.06), -1.7, loss="infonce")(r, c), NEVER_SEPARATED
    ),
    "one caption for all": Kind(lambda r, c: constant(c.uniform(0.005, 0.05), 0.0, width=0.0, jitter=0.3)(r, c),
                                NEVER_SEPARATED),
    "zero features": Kind(constant(1e-7, -0.5), NEVER_SEPARATED),
    "noise for features": Kind(lambda r, c: replace(
        stalls(r, c), rsum=None, loss=c.choice(("selhn", "tal", "infonce")),
        spread=path((0, 0.05), (0.2, 0.02), (1, c.uniform(0.01, 0.02)))), NEVER_SEPARATED),
    "semi-hard collapse": Kind(lambda r, c: replace(
        r, spread=path((0, 0.05), (0.1, 0.2), (1, 0.2)), ahead=path((0, -1.6), (0.1, -1.8), (1, -2)),
        change=times_loss(lambda x, _: 1.6 * math.exp(-6 * x))), LOST),
    "learnt, and then everything is lost": Kind(lambda r, c: replace(
        learns(r, c), rsum=path((0, 10), (0.3, 200), (0.4, 200), (0.45, 3.2), (1, 3.2)), images=1000, evaluations=12,
        spread=path((0, 0.04), (0.3, 0.15), (0.4, 0.15), (0.45, 0.003), (1, 0.002)),
        ahead=path((0, -1.6), (0.3, 0.5), (0.4, 0.5), (0.45, -1), (1, -1))), (*LOST, "overfitting")),
    "short, dev at chance": Kind(lambda r, c: replace(
        stalls(r, c, since=0.6), steps=c.choice((140, 280)), every=c.choice((1, 2)), evaluations=4, rsum=None,
        loss=c.choice(("selhn", "hn"))), ("unclear", *LOST)),
    "restarts, dev at chance": Kind(lambda r, c: replace(memorises(r, c), change=times_loss(restart)), CHANCE),
    "overfitting": Kind(lambda r, c: replace(
        learns(r, c), evaluations=c.randint(10, 30), images=c.choice((500, 1000)),
        rsum=path((0, 20), (0.25, (top := c.uniform(150, 400))), (0.6, 0.85 * top), (1, c.uniform(0.6, 0.8) * top))),
        ("overfitting",)),
    "overfitting, only loss and dev": Kind(lambda r, c: replace(
        learns(r, c), scores=False, evaluations=c.randint(10, 30), images=c.choice((500, 1000)),
        rsum=path((0, 20), (0.25, (top := c.uniform(150, 400))), (0.6, 0.85 * top), (1, c.uniform(0.6, 0.8) * top))),
        ("overfitting",)),
    "overfitting, queries not logged": Kind(
        lambda r, c: replace(KINDS["overfitting"].draw(r, c), counts=False), ("overfitting",)
    ),
    # Learning.
    "learns": Kind(learns),
    "learns, known loss": Kind(lambda r, c: replace(learns(r, c), names_loss=True)),
    "learns, summed": Kind(lambda r, c: replace(learns(r, c), reduction="sum")),
    "learns, queries not logged": Kind(lambda r, c: replace(learns(r, c), counts=False)),
    "learns, no dev": Kind(lambda r, c: replace(learns(r, c), dev=False)),
    "learns, only loss and dev": Kind(lambda r, c: replace(learns(r, c), scores=False)),
    "learns, only the loss": Kind(lambda r, c: losses_only(learns(r, c))),
    "learns slowly": Kind(lambda r, c: replace(
        learns(r, c), rsum=path((0, 8), (1, c.uniform(60, 150))), images=c.choice((500, 1000)),
        steps=max(r.steps, 3000),
        spread=path((0, 0.05), (1, 0.12)), ahead=path((0, -1.6), (0.5, -0.4), (1, c.uniform(0.1, 0.4))))),
    "learns slowly, dev first at chance": Kind(lambda r, c: replace(
        learns(r, c), rsum=path((0, 3.3), (0.4, 3.5), (1, c.uniform(30, 90))), images=1000, steps=max(r.steps, 3000),
        spread=path((0, 0.05), (1, 0.12)), ahead=path((0, -1.6), (0.5, -0.4), (1, c.uniform(0.1, 0.4))))),
    "loss swings, dev good and flat": Kind(lambda r, c: replace(
        learns(r, c), rsum=path((0, (top := c.uniform(150, 450))), (1, 1.02 * top)), change=times_loss(swings))),
    "loss swings, dev good and flat, no scores": Kind(lambda r, c: replace(
        learns(r, c), rsum=path((0, (top := c.uniform(150, 450))), (1, 1.02 * top)), scores=False,
        change=times_loss(swings))),
    "fine-tuned: good from the start, loss flat": Kind(lambda r, c: replace(
        learns(r, c), rsum=path((0, (top := c.uniform(250, 450))), (1, 1.02 * top)),
        spread=path((0, 0.2), (1, 0.2)), ahead=path((0, 0.8), (1, 0.9)))),
    "T-HN leaves its plateau late": Kind(lambda r, c: replace(
        learns(r, c), loss="hn", steps=max(r.steps, 3000), rsum=path((0, 4), (0.5, 10), (0.7, 150), (1, 300)),
        images=1000,
        spread=path((0, 0.05), (0.1, 0.004), (0.5, 0.003), (0.6, 0.08), (1, 0.18)),
        ahead=path((0, -1.6), (0.5, -1), (0.65, 0.2), (1, 0.9)))),
    "SelHN begins to mine, its loss rises": Kind(lambda r, c: replace(
        learns(r, c), loss="selhn", rsum=path((0, 10), (0.4, 100), (1, 300)),
        spread=path((0, 0.04), (0.2, 0.005), (0.4, 0.03), (1, 0.15)),
        ahead=path((0, -1.6), (0.2, -1), (0.5, -0.1), (1, 0.7)))),
    "rate drops": Kind(lambda r, c: replace(learns(r, c), change=times_loss(drop((0.4, 0.7), c.uniform(0.6, 0.8))))),
    "warm-up of the rate": Kind(lambda r, c: replace(
        learns(r, c), spread=path((0, 0.04), (0.2, 0.04), (0.4, 0.1), (1, 0.18)),
        ahead=path((0, -1.6), (0.2, -1.6), (0.5, 0), (1, 0.8)), rsum=path((0, 4), (0.15, 4), (0.4, 150), (1, 320)))),
    "restarts": Kind(lambda r, c: replace(learns(r, c), change=times_loss(restart))),
    "restarts, only loss and dev": Kind(
        lambda r, c: replace(learns(r, c), scores=False, change=times_loss(restart))
    ),
    "short": Kind(lambda r, c: replace(learns(r, c), steps=c.choice((60, 120, 200)), every=1, evaluations=3)),
    "InfoNCE on logits": Kind(lambda r, c: replace(
        learns(r, c), loss="infonce", scale=c.choice((14.3, 30.0, 100.0)),
        spread=path((0, 0.04), (1, c.uniform(0.06, 0.2))))),
    "SelHN on logits": Kind(lambda r, c: replace(
        learns(r, c), loss="selhn", scale=c.choice((14.3, 100.0)),
        spread=path((0, 0.04), (0.1, 0.004), (0.4, 0.02), (1, 0.1)))),
    "small last batches": Kind(lambda r, c: ragged(learns(r, c), c, c.random() < 0.5)),
    "small last batches, with dev": Kind(lambda r, c: replace(ragged(learns(r, c), c, c.random() < 0.5), dev=True)),
    "hard data: dev low and flat, far above chance": Kind(lambda r, c: replace(
        learns(r, c), images=c.choice((1000, 5000)),
        rsum=path((0, 10), (0.3, (top := c.uniform(40, 90))), (1, 1.05 * top)))),
    "small dev": Kind(lambda r, c: replace(learns(r, c), images=c.choice((30, 50, 80)), rsum=up(c, 400, 550))),
    "positives do not win yet, dev good": Kind(lambda r, c: replace(
        learns(r, c), rsum=up(c, 380, 480), ahead=path((0, -1.6), (0.3, -0.6), (1, -0.15)))),
    "dev falls a little at the end": Kind(lambda r, c: replace(
        learns(r, c), evaluations=c.randint(8, 20),
        rsum=path((0, 20), (0.6, (top := c.uniform(200, 400))), (1, 0.985 * top)))),
    "a gradient scaler skips steps": Kind(lambda r, c: replace(learns(r, c), change=skipped)),
}  # fmt: skip


def common(chance: random.Random) -> Drawn:
    """What differs between all runs."""
    every = chance.choice((1, 5, 10, 20, 50))
    return Drawn(
        spread=path((0, 0.05), (1, 0.05)),
        ahead=path((0, -1), (1, -1)),
        batch=chance.choice((32, 64, 128, 256)),
        every=every,
        steps=max(40 * every, chance.choice((1200, 2000, 3000, 5000))),
        evaluations=chance.randint(4, 20),
        images=chance.choice((100, 200, 500, 1000, 5000)),
        texts=chance.choice((1, 5)),
        temperature=chance.choice((0.05, 0.07, 0.1)),
    )


def drawn(kind: str, seed: int, each: int = EACH) -> Iterator[tuple[Drawn, list[Row]]]:
    """The logs of one kind that a seed decides."""
    for number in range(each):
        chance = random.Random(f"{kind} {seed} {number}")
        run = KINDS[kind].draw(common(chance), chance)
        yield run, rows_of(run, chance)


def has_enough(log: Log) -> bool:
    """Whether it has been looked at often enough for a verdict that is not "too early to tell"."""
    return len(log.loss) >= ENOUGH_LOOKS and len(log.dev) >= ENOUGH_EVALUATIONS


def column_of(kind: Kind, verdict: str) -> str:
    """How a verdict is counted."""
    if verdict in kind.own:
        return "own"
    return verdict if verdict in ("healthy", "unclear") else "alarmed"


def report(seeds: Sequence[int], each: int = EACH) -> str:
    """Every kind, and the sums that count."""
    lines, sums = [], Counter[str]()
    for name, kind in KINDS.items():
        counts, kinds, wanted = Counter[str](), Counter[str](), 0
        for seed in seeds:
            for run, rows in drawn(name, seed, each):
                verdict, enough = say(run, rows).kind, has_enough(from_rows(rows))
                column = column_of(kind, verdict)
                counts[column] += 1
                kinds[verdict] += 1
                wanted += enough
                group = "failing" if kind.own else "learning"
                sums[group] += 1
                sums[f"{group} {column}"] += 1
                if enough:
                    sums[f"{group}, enough"] += 1
                    sums[f"{group}, enough, {column}"] += 1
        said = ", ".join(f"{verdict} {count}" for verdict, count in kinds.most_common())
        cells = [str(counts[column]) for column in ("own", "healthy", "alarmed", "unclear")]
        lines.append([name, " or ".join(kind.own) or "learns", *cells, str(wanted), said])
    total = [
        f"- {group}: {sums[group]} logs, own kind {sums[f'{group} own']}, healthy {sums[f'{group} healthy']}, "
        f"alarmed {sums[f'{group} alarmed']}, unclear {sums[f'{group} unclear']}; with {ENOUGH_LOOKS} losses and "
        f"{ENOUGH_EVALUATIONS} evaluations or more: {sums[f'{group}, enough']} logs, "
        f"own kind {sums[f'{group}, enough, own']}, unclear {sums[f'{group}, enough, unclear']}"
        for group in ("failing", "learning")
    ]
    return "\n\n".join(
        [
            f"# Verdicts on {sums['failing'] + sums['learning']} drawn logs of {len(KINDS)} kinds, "
            f"seeds {', '.join(map(str, seeds))}",
            environment(),
            "\n".join(total),
            table(["kind", "truth", "own", "healthy", "alarmed", "unclear", "enough", "said"], lines),
        ]
    )


def main() -> None:
    """Draw, judge, and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--each", type=int, default=EACH, help="logs of every kind and seed")
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    parser.add_argument("--name", default="drawn-verdicts", help="name of the table")
    arguments = parser.parse_args()
    text = report(arguments.seeds, arguments.each)
    print(f"{text}\n\nwritten to {save(arguments.name, text, arguments.out)}")


if __name__ == "__main__":
    main()
