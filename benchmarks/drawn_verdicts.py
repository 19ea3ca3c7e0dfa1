"""Verdicts on runs that are drawn after the rules were frozen: which does `selhn diagnose` misjudge, and when?

    python benchmarks/drawn_verdicts.py --commit COMMIT

The hash of the commit that froze the rules decides losses, rates, sizes, reductions and seeds, so that nobody
chose them. Among them are always T-HN and SelHN with a rate of 1e-5, summed, which sink to their plateau from above.
Truth is RSUM on dev at the end of a run, against the best run in the same loop: at least three quarters of it is
learnt; at least a quarter, and still growing, is slow; all else has failed. Each run is judged at several lengths, as
its own log and as two that have nothing but a loss: with batch and reduction told, and without.
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from plain_loop import plain_run
from report import environment, save, table

from selhn.diagnose import Verdict, diagnose, from_rows, judge, plateaus
from selhn.runs import RunFolder, read_log
from selhn.training import get_recipe, override, run_config

LOSSES = ("hn", "selhn", "shn", "infonce", "triplet")
RATES = {"low": (1e-5, 3e-5, 1e-4), "usual": (5e-4, 2e-3), "high": (1e-2, 0.1, 0.3)}
LENGTHS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0)
WORLD = ["data.images=800", "data.regions=8", "model.dim=32", "model.word_dim=32", "drop_regions=0", "corrupt_words=0",
         "decay_at=[]", "device=cpu", "epochs=16", "batch_size=64"]  # fmt: skip
LEARNT, SLOW, GROWS = 0.75, 0.25, 1.05
BAD = ("stalled", "collapsing", "diverging", "overfitting")


@dataclass(frozen=True)
class Drawn:
    """One run: of the plain loop, or with `model` of the library's own on the generated world."""

    loss: str
    lr: float
    seed: int
    batch: int = 64
    reduction: str = "sum"
    pairs: int = 2000
    steps: int = 2000
    model: str = ""

    @property
    def name(self) -> str:
        where = self.model or f"plain{self.pairs}-{self.reduction}{self.batch}-{self.steps}"
        return f"{where}-{self.loss}-lr{self.lr:g}-seed{self.seed}"

    @property
    def setup(self) -> str:
        return "world" if self.model else "plain"


def draw(commit: str, number: int, worlds: int) -> Iterator[Drawn]:
    """The runs that a commit decides."""
    chance = random.Random(commit)
    for loss in ("hn", "selhn", "hn", "selhn"):
        yield Drawn(loss, 1e-5, chance.randrange(10**6))
    for at in range(number - 4):
        lr = chance.choice(RATES[chance.choice(list(RATES))])
        steps = chance.choice((500, 700, 1000) if lr > 1e-4 else (700, 1000, 1500))
        yield Drawn(
            LOSSES[at % len(LOSSES)], lr, chance.randrange(10**6), chance.choice((32, 64, 128)),
            chance.choice(("mean", "sum")), chance.choice((1000, 2000, 4000)), steps,
        )  # fmt: skip
    if worlds:
        yield Drawn("infonce", 2e-3, chance.randrange(10**6), model="vse_fc", reduction="mean")
    for at in range(worlds - 1):
        lr = chance.choice((1e-4, 2e-3, 0.1))
        model = chance.choice(("vse_fc", "vse_mlp"))
        yield Drawn(LOSSES[at % len(LOSSES)], lr, chance.randrange(10**6), model=model, reduction="mean")


def train(job: Drawn, folder: Path) -> None:
    """One run, unless it is there."""
    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if job.model:
        settings = [*WORLD, f"loss={job.loss}", f"lr={job.lr}", f"seed={job.seed}"]
        begun = RunFolder(folder).started
        run_config(
            override(get_recipe(f"{job.model}_selhn_world"), settings), folder, resume=begun, quiet=True
        )
    else:
        rows = plain_run(job.loss, job.steps, job.lr, job.pairs, job.seed, job.reduction, job.batch)
        (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "done").touch()


def truths(found: dict[Drawn, list[float]]) -> dict[Drawn, tuple[str, float]]:
    """What became of every run, and the share of the best RSUM that it reached."""
    best = {
        job.setup: max(rsums[-1] for other, rsums in found.items() if other.setup == job.setup)
        for job in found
    }
    said = {}
    for job, rsums in found.items():
        share = rsums[-1] / best[job.setup]
        grows = rsums[-1] > GROWS * rsums[2 * len(rsums) // 3]
        said[job] = ("learnt" if share >= LEARNT else "slow" if share >= SLOW and grows else "failed", share)
    return said


def verdicts(job: Drawn, folder: Path, length: float) -> dict[str, Verdict]:
    """What is said of the first part of a run, by form of its log."""
    rows = read_log(folder / "log.jsonl")
    last = rows[-1]["step"]
    rows = [row for row in rows if row["step"] <= length * last]
    losses = [{"step": row["step"], "loss": row["loss"]} for row in rows if "loss" in row]
    part = folder / "part"
    part.mkdir(exist_ok=True)
    (part / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if job.model:
        (part / "config.yaml").write_text((folder / "config.yaml").read_text())
    alone = from_rows(losses)
    told = list(plateaus(0.2, job.batch, job.reduction))
    return {
        "its log": diagnose(part).verdict,
        "told": judge(alone, told),
        "guessed": judge(alone, list(plateaus())),
    }


def report(found: dict[Drawn, list[float]], runs: Path, commit: str) -> str:
    """Every run, and every verdict that is not right."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    lines, lists = [], {"wrong": [], "early": [], "open": []}  # type: tuple[list[list[str]], dict[str, list[str]]]
    for job, (truth, share) in truths(found).items():
        by_length = {length: verdicts(job, runs / job.name, length) for length in LENGTHS}
        for length, forms in by_length.items():
            for form, verdict in forms.items():
                kind, ended = verdict.kind, length == 1.0
                counts[(form, "at the end" if ended else "before", truth, kind)] += 1
                words = f"{job.name} at {length:.0%} ({form}): {truth} {share:.2f}, {verdict.title}"
                if (truth == "failed" and kind in ("healthy", "overfitting")) or (
                    ended and truth == "learnt" and kind in BAD
                ):
                    lists["wrong"].append(words)
                elif truth == "learnt" and kind in BAD:
                    lists["early"].append(words)
                elif ended and truth != "slow" and kind == "unclear":
                    lists["open"].append(words)
        cells = [" ".join(forms[form].kind[:2] for forms in by_length.values()) for form in by_length[1.0]]
        lines.append([job.name, f"{found[job][-1]:.0f}", f"{share:.2f}", truth, *cells])
    kinds = ("healthy", "unclear", *BAD)
    keys = sorted({key[:3] for key in counts}, reverse=True)
    confusion = [[", ".join(key), *(str(counts[(*key, kind)]) for kind in kinds)] for key in keys]

    def listed(title: str, name: str) -> str:
        return f"{len(lists[name])} {title}" + "".join(f"\n- {one}" for one in lists[name])

    return "\n\n".join(
        [
            f"# Verdicts on {len(found)} runs drawn from commit {commit[:12]}, which froze the rules",
            environment(),
            table(["log, when, truth", *kinds], confusion),
            listed(
                f"misjudged of {sum(counts.values())}: healthy but failed, or bad at the end but learnt",
                "wrong",
            ),
            listed("were called bad before they learnt", "early"),
            listed("were left unclear at the end, that had learnt or failed", "open"),
            f"At {', '.join(f'{length:.0%}' for length in LENGTHS)} of a run: he(althy), un(clear), st(alled), "
            "co(llapsing), di(verging), ov(erfitting).",
            table(["run", "RSUM", "share", "truth", "its log", "told", "guessed"], lines),
        ]
    )


def main() -> None:
    """Train what is missing, then judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", required=True, help="hash that decides the runs")
    parser.add_argument("--number", type=int, default=60, help="runs of the plain loop")
    parser.add_argument("--worlds", type=int, default=3, help="runs of the library's own loop")
    parser.add_argument("--runs", type=Path, default=Path("runs/drawn"))
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    parser.add_argument("--finished", action="store_true", help="judge those that are finished, train none")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = list(draw(arguments.commit, arguments.number, arguments.worlds))
    for job in chosen if not arguments.finished else []:
        train(job, arguments.runs / job.name)
        print(job.name, flush=True)
    chosen = [job for job in chosen if (arguments.runs / job.name / "done").exists()]
    found = {}
    for job in chosen:
        log = from_rows(read_log(arguments.runs / job.name / "log.jsonl"))
        found[job] = [rsum for _, rsum in log.dev]
    text = report(found, arguments.runs, arguments.commit)
    print(f"{text}\n\nwritten to {save('drawn_verdicts', text, arguments.out)}")


if __name__ == "__main__":
    main()
