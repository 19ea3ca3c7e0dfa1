"""Verdicts on small trained runs of known truth: what does `selhn diagnose` say of a run that cannot have learnt?

    python benchmarks/verdicts.py --seeds 0 1
    python benchmarks/verdicts.py --only '*shuffled*' --seeds 3

Truth is known from what was done to a run: captions were shuffled, features are zero, the learning rate is absurd, and
so on; RSUM on dev, which is in the table, is the check. Runs are those of `plain_loop.py`, a few seconds each, and some
of the library's own loop on the generated world. Each is judged from its own log, and from its loss alone, with batch
and reduction told and without; a loss alone need not show anything, but must not be wrong. The rules were tuned on
seed 0. Finished runs in the folder are kept.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from drawn_verdicts import Kind, column_of
from plain_loop import BATCH, plain_run
from report import environment, save, table

from selhn.diagnose import Log, diagnose, from_rows, judge, plateaus
from selhn.runs import RunFolder, read_log
from selhn.training import get_recipe, override, run_config

STALLED, CHANCE = ("stalled",), ("chance",)
NOTHING_LEARNT = ("stalled", "chance")
LOST = ("stalled", "chance", "collapsing", "diverging")
FEW = {"pairs": 100, "steps": 1400, "held_out": 1000}
"""Few training pairs, which are soon known by heart, and a large dev set."""
WORLD = ["data.images=100", "data.regions=8", "model.dim=32", "model.word_dim=32",
         "drop_regions=0", "corrupt_words=0", "decay_at=[]", "device=cpu", "epochs=60", "batch_size=50",
         "lr=2e-3"]  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """One run: of the plain loop, or with `world` of the library's own."""

    name: str
    own: tuple[str, ...] = ()
    """The right verdicts on a run that fails; none: it learns."""
    settings: dict[str, Any] = field(default_factory=dict)
    world: tuple[str, ...] = ()


def runs() -> Iterator[Trained]:
    """What is trained with every seed."""
    for loss in ("selhn", "triplet", "infonce", "tal", "siglip", "multi_positive", "distance", "shn"):
        yield Trained(f"{loss}", (), {"loss": loss})
    yield Trained("selhn sum", (), {"loss": "selhn", "reduction": "sum"})
    yield Trained("selhn slow", (), {"loss": "selhn", "lr": 3e-4, "steps": 2000})
    yield Trained("infonce slow", (), {"loss": "infonce", "lr": 2e-4, "steps": 1500})
    yield Trained("infonce logits x 14.3", (), {"loss": "infonce", "temperature": 1.0, "scale": 14.3})
    yield Trained(
        "infonce logits x 100", (), {"loss": "infonce", "temperature": 1.0, "scale": 100.0, "steps": 1000}
    )
    yield Trained("triplet logits x 100", (), {"loss": "triplet", "scale": 100.0, "steps": 1000})
    yield Trained("tal batch 32", (), {"loss": "tal", "batch": 32})
    for loss in ("hn", "bce_max"):
        yield Trained(f"{loss} stalls", STALLED, {"loss": loss, "steps": 1000})
    yield Trained("hn stalls, sum", STALLED, {"loss": "hn", "reduction": "sum"})
    yield Trained("hn stalls, rate of 1e-4", STALLED, {"loss": "hn", "lr": 1e-4, "steps": 2000})
    yield Trained("hn stalls, batch 128", STALLED, {"loss": "hn", "batch": 128})
    for scale in (14.3, 100.0):
        yield Trained(
            f"hn stalls, logits x {scale:g}", STALLED, {"loss": "hn", "scale": scale, "steps": 1000}
        )
    for loss in ("triplet", "siglip", "infonce", "tal", "selhn", "multi_positive", "distance"):
        yield Trained(f"{loss} shuffled", NOTHING_LEARNT if loss == "selhn" else CHANCE,
                      {"loss": loss, "fault": "shuffled", **FEW})  # fmt: skip
    yield Trained("hn shuffled", NOTHING_LEARNT, {"loss": "hn", "fault": "shuffled", **FEW})
    for loss in ("triplet", "infonce"):
        yield Trained(f"{loss} few pairs", (), {"loss": loss, "pairs": 100, "steps": 2100, "held_out": 1000})
    for loss in ("hn", "selhn", "infonce"):
        yield Trained(
            f"{loss} zero features", NOTHING_LEARNT, {"loss": loss, "fault": "zeros", "steps": 1000}
        )
        yield Trained(
            f"{loss} one caption", NOTHING_LEARNT, {"loss": loss, "fault": "one caption", "steps": 1000}
        )
        yield Trained(f"{loss} rate of 1e-8", NOTHING_LEARNT, {"loss": loss, "lr": 1e-8, "steps": 1000})
        yield Trained(f"{loss} rate of 5", LOST, {"loss": loss, "lr": 5.0, "steps": 1000})
    for loss in ("hn", "selhn", "infonce", "tal"):
        yield Trained(f"{loss} noise", LOST, {"loss": loss, "fault": "noise", "steps": 1000})
    for loss in ("infonce", "tal"):
        yield Trained(f"world {loss} shuffled", CHANCE, world=(f"loss={loss}", "noise=0.999"))
    yield Trained("world hn stalls", STALLED, world=("loss=hn",))


def train(run: Trained, seed: int, folder: Path) -> None:
    """One run, unless it is there."""
    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if run.world:
        begun = RunFolder(folder).started
        config = override(get_recipe("vse_fc_selhn_world"), [*WORLD, *run.world, f"seed={seed}"])
        run_config(config, folder, resume=begun, quiet=True)
    else:
        rows = plain_run(**run.settings, seed=seed)
        (folder / "probe.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "done").touch()


def judged(run: Trained, folder: Path) -> tuple[Log, dict[str, str]]:
    """Its log, and what is said of it by form of the log."""
    path = folder if run.world else folder / "probe.jsonl"
    verdict, log, *_ = diagnose(path)
    alone = from_rows(
        {"step": row["step"], "loss": row["loss"]}
        for row in read_log(folder / ("log.jsonl" if run.world else "probe.jsonl"))
        if "loss" in row
    )
    batch = 50 if run.world else run.settings.get("batch", BATCH)
    told = plateaus(0.2, batch, run.settings.get("reduction", "mean"))
    return log, {
        "its log": verdict.kind,
        "told": judge(alone, told).kind,
        "guessed": judge(alone, plateaus()).kind,
    }


def is_wrong(run: Trained, form: str, verdict: str) -> bool:
    """Whether somebody would be misled; a loss alone may show another fault, or nothing."""
    column = column_of(Kind(lambda run, chance: run, run.own), verdict)
    return column == ("healthy" if run.own else "alarmed") or (form == "its log" and column == "alarmed")


def report(chosen: list[Trained], seeds: list[int], folder: Path) -> str:
    """Every run, and what was said of it."""
    lines, counts, wrong = [], Counter[str](), []
    for run in chosen:
        for seed in seeds:
            log, said = judged(run, folder / f"{run.name} {seed}")
            group = "failing" if run.own else "learning"
            counts[group] += 1
            column = column_of(Kind(lambda run, chance: run, run.own), said["its log"])
            counts[f"{group} {column}"] += 1
            wrong += [f"{run.name}, seed {seed} ({form}): {verdict}" for form, verdict in said.items()
                      if is_wrong(run, form, verdict)]  # fmt: skip
            rsums = [f"{rsum:.0f}" for _, rsum in (log.dev[0], log.dev[-1])]
            lines.append(
                [f"{run.name}, seed {seed}", " or ".join(run.own) or "learns", *rsums, *said.values()]
            )
    sums = [
        f"- {group}: {counts[group]} runs, own kind {counts[f'{group} own']}, healthy {counts[f'{group} healthy']}, "
        f"alarmed {counts[f'{group} alarmed']}, unclear {counts[f'{group} unclear']}"
        for group in ("failing", "learning")
    ]
    return "\n\n".join(
        [
            f"# Verdicts on {len(lines)} trained runs of known truth",
            environment(),
            "\n".join(sums),
            f"{len(wrong)} verdicts of {3 * len(lines)} mislead" + "".join(f"\n- {one}" for one in wrong),
            table(["run", "truth", "first RSUM", "last RSUM", "its log", "told", "guessed"], lines),
        ]
    )


def main() -> None:
    """Train what is missing, then judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names, such as '*shuffled*'")
    parser.add_argument("--runs", type=Path, default=Path("runs/verdicts"))
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    parser.add_argument("--name", default="verdicts", help="name of the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [run for run in runs() if any(fnmatch(run.name, pattern) for pattern in arguments.only)]
    for seed in arguments.seeds:
        for run in chosen:
            train(run, seed, arguments.runs / f"{run.name} {seed}")
            print(f"{run.name} {seed}", flush=True)
    text = report(chosen, arguments.seeds, arguments.runs)
    print(f"{text}\n\nwritten to {save(arguments.name, text, arguments.out)}")


if __name__ == "__main__":
    main()
