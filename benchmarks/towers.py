"""The ready model by towers, without torch, beside an earlier checkout: start, pictures, cache, and the same results.

    git worktree add ../before 6afd9151
    python benchmarks/towers.py speed --before ../before --photos f8k_photos/dev
    python benchmarks/towers.py same --photos f8k_photos/dev --data f8k_pocket

`speed`: both checkouts in turn, each time in processes of their own, one thread each; the least of all rounds. CPU time
is that of the process, and of those that decode for it. *Plain* is onnxruntime on the same network, and Pillow, in a
loop. `same`: vectors and the ten best answers of the example pictures and of photographs, by towers and by torch.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from camera import enlarged
from report import environment, save, table

HERE = Path(__file__).parent
AT_ONCE = 12
COLD = {
    "before": "from selhn.pictures.ready import load_ready_model as f; f().embed_texts(['a dog'])",
    "after": "from selhn.towers import open_towers as f; f('ready').embed_texts(['a dog'])",
}


def source(before: Path, which: str) -> Path:
    """The package of one of the two checkouts."""
    return (before if which == "before" else HERE.parent) / "src"


def cold(place: Path, code: str) -> tuple[float, float]:
    """CPU and wall seconds of a new process until it has the vector."""
    settings = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    code = f"{code}; import time; print(time.process_time(), time.time())"
    start = time.time()
    told = subprocess.check_output([sys.executable, "-c", code], env=settings, text=True)
    cpu, end = map(float, told.split())
    return cpu, end - start


def part(place: Path, which: str, folder: Path) -> dict[str, float]:
    """What `measured` says in a process of its own."""
    settings = {**os.environ, "PYTHONPATH": f"{place}:{HERE}", "OMP_NUM_THREADS": "1"}
    code = [sys.executable, str(HERE / "towers_part.py"), which, str(folder)]
    done = subprocess.run(code, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def speed(arguments: argparse.Namespace) -> list[str]:
    """The table of both checkouts."""
    best: dict[str, dict[str, float]] = {"before": {}, "after": {}}

    def keep(which: str, name: str, value: float) -> None:
        best[which][name] = min(best[which].get(name, np.inf), value)

    with tempfile.TemporaryDirectory() as place:
        small, large = Path(place) / "small", Path(place) / "large"
        small.mkdir()
        large.mkdir()
        for path in sorted(arguments.photos.iterdir())[:AT_ONCE]:
            (small / path.name).write_bytes(path.read_bytes())
            (large / path.name).write_bytes(enlarged(path, 12, 0))
        for number in range(arguments.rounds):
            for which in best:
                own = source(arguments.before, which)
                for _ in range(3):
                    cpu, wall = cold(own, COLD[which])
                    if number or _:  # the first may have to make the towers folder
                        keep(which, "cold, CPU s", cpu)
                        keep(which, "cold, wall s", wall)
                for name, value in part(own, which, Path(place)).items():
                    keep(which, name, value)
                print(which, best[which], file=sys.stderr, flush=True)
    before, after = best["before"], best["after"]
    rows = []
    for name in after:
        ratio = before[name] / after[name]
        rows.append([name, f"{before[name]:.3g}", f"{after[name]:.3g}", f"{ratio:.2f}"])
    beside = []
    for kind in ("320 px", "12 MP"):
        own = [found[f"{kind}, CPU ms"] / found[f"{kind}, plain, CPU ms"] for found in (before, after)]
        beside.append([kind, *(f"{ratio:.2f}" for ratio in own)])
    return [
        environment(),
        "",
        table(["the least of all rounds", "before", "after", "ratio"], rows),
        "",
        table(["files to vectors, by plain", "before", "after"], beside),
    ]


@torch.inference_mode()
def same(arguments: argparse.Namespace) -> list[str]:
    """Vectors and answers by towers and by torch."""
    from selhn.data import load_data
    from selhn.pictures import load_extractor
    from selhn.pictures.decoding import decode_picture
    from selhn.pictures.examples import ANNOTATIONS, PICTURES
    from selhn.pictures.ready import load_ready_model
    from selhn.towers import open_towers

    towers, model, extractor = open_towers("ready"), load_ready_model(), load_extractor()
    dev = load_data(arguments.data, regions=1).dev
    examples = json.loads(ANNOTATIONS.read_text())
    sets = {
        "76 example pictures": (
            [PICTURES / one["file"] for one in examples],
            [text for one in examples for text in one["captions"]],
        ),
        f"{len(dev.image_names):,} photographs": (
            [arguments.photos / name for name in dev.image_names],
            list(dev.captions),
        ),
    }
    rows = []
    for name, (paths, captions) in sets.items():
        images, texts, regions = [], towers.embed_texts(captions), []
        for path in paths:
            picture = decode_picture(path.read_bytes(), path.name, resized=towers.resized).image
            images.append(towers.embed_pictures([picture])[0])
            regions.append(extractor([picture])[0].half().float())  # as the former cache kept them
        ours = np.stack(images)
        theirs = model.embed_images(torch.stack(regions)).numpy()
        their_texts = model.embed_texts(captions).numpy()
        found, wanted = (ten_best(t @ i.T) for i, t in ((ours, texts), (theirs, their_texts)))
        order = (found == wanted).all(1)
        members = np.array([set(a) == set(b) for a, b in zip(found.tolist(), wanted.tolist())])
        rows.append([
            name,
            f"{(ours * theirs).sum(1).min():.6f}", f"{(texts * their_texts).sum(1).min():.6f}",
            f"{len(captions):,}", f"{int((~members).sum())}", f"{int((~order).sum())}",
        ])  # fmt: skip
    head = ["", "least cosine, pictures", "texts", "questions", "other ten best", "other order"]
    return [environment(), "", table(head, rows)]


def ten_best(scores: np.ndarray) -> np.ndarray:
    """The columns of the ten best scores in each row, best first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :10]


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, run in (("speed", speed), ("same", same)):
        command = commands.add_parser(name)
        command.add_argument("--photos", type=Path, required=True)
        command.add_argument("--out", type=Path)
        command.set_defaults(run=run, name=name)
        if run is speed:
            command.add_argument("--before", type=Path, required=True, help="checkout of an earlier version")
            command.add_argument("--rounds", type=int, default=5)
        else:
            command.add_argument("--data", type=Path, required=True, help="folder with the captions of dev")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = "\n".join(arguments.run(arguments))
    print(text)
    save(f"towers-{arguments.name}-cpu", text, arguments.out)


if __name__ == "__main__":
    main()
