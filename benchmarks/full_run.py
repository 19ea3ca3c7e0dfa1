"""A whole training run: set-up, every epoch with its evaluation, test at the end; recorded beside as written.

    python benchmarks/full_run.py --device cuda                          29,000 images, 36 x 2048 regions, 20 epochs
    python benchmarks/full_run.py --device cuda --data data/f8k_pocket --dataset f8k
    python benchmarks/full_run.py --device cuda --captures never                as written, for comparison

The world has the size of Flickr30K: 29,000 images and 145,000 captions to train on, 1,000 images each for dev and test.
"""

import argparse
import json
import time
from pathlib import Path

from report import environment, save, table

from selhn.data import load_data
from selhn.training import get_recipe, override
from selhn.training.loop import train
from selhn.training.run import make_loss, make_model


def one_run(settings: list[str], dataset: str, capture: str) -> dict[str, float]:
    """Train, and take the time of everything from the first file read to the last number on test."""
    config = override(get_recipe(f"rvse_selhn_{dataset}"), [*settings, f"capture={capture}"])
    start = time.perf_counter()
    data = load_data(config.data, **config.data_settings)
    model = make_model(config, data)
    ready = time.perf_counter()
    run = train(model, data, make_loss(config), config=config.train)
    end = time.perf_counter()
    return {"total": end - start, "prepare": ready - start, "rsum": run.test.rsum, "dev": run.dev.rsum}


def main() -> None:
    """One row for every way to run a step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--data", default="world")
    parser.add_argument("--dataset", default="f30k", help="whose recipe")
    parser.add_argument("--captures", nargs="+", default=["always"], choices=["always", "never"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("-s", "--settings", nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    settings = [f"data={arguments.data}", f"device={arguments.device}", "epochs=20", *arguments.settings]
    if arguments.data == "world":
        settings = ["data.images=29000", "data.regions=36", "data.width=2048", *settings]
    rows = []
    for capture in arguments.captures:
        for seed in arguments.seeds:
            got = one_run([*settings, f"seed={seed}"], arguments.dataset, capture)
            print(json.dumps({"capture": capture, "seed": seed, **got}), flush=True)
            kind = {"always": "recorded", "never": "as written"}[capture]
            numbers = [f"{got[key]:.1f}" for key in ("prepare", "total", "dev", "rsum")]
            rows.append([kind, str(seed), *numbers])
    header = ["steps", "seed", "data and vocabulary, s", "all, s", "dev RSUM", "test RSUM"]
    text = f"# A whole run on {Path(arguments.data).name}\n\n{environment()}\n\n{table(header, rows)}"
    name = f"full-run-{Path(arguments.data).name}-{'-'.join(arguments.captures)}-{arguments.device}"
    print(f"\n{text}\n\nwritten to {save(name, text, arguments.out)}")


if __name__ == "__main__":
    main()
