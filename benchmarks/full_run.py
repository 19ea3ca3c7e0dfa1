"""A whole training run: set-up, every epoch with its evaluation, test at the end; recorded beside as written.

    python benchmarks/full_run.py --device cuda                          29,000 images, 36 x 2048 regions, 20 epochs
    python benchmarks/full_run.py --device cuda --data data/f8k_pocket --dataset f8k
    python benchmarks/full_run.py --device cuda --captures never                as written, for comparison

The world has the size of Flickr30K: 29,000 images and 145,000 captions to train on, 1,000 images each for dev and test.

The second table has the parts of the run. Steps are queued on the GPU ahead of the program, but an epoch ends by
reading numbers from it. The first epoch and the first dev include all compiling and recording: with an empty
`TRITON_CACHE_DIR` they are those of a first run.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from report import environment, save, table

from selhn.data import load_data
from selhn.losses import create_loss
from selhn.training import get_recipe, loop, override
from selhn.training.run import make_model

Span = tuple[float, float]


@contextmanager
def watched(*names: str) -> Iterator[dict[str, list[Span]]]:
    """When each call of these functions of the loop began and ended."""
    spans: dict[str, list[Span]] = {name: [] for name in names}

    def watch(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **settings: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **settings)
            finally:
                spans[name].append((start, time.perf_counter()))

        return timed

    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(loop, name, watch(name, getattr(loop, name))))
        yield spans


def parts_of(spans: dict[str, list[Span]]) -> dict[str, float]:
    """Seconds of the set-up, the first and a later epoch of steps, the first and a later dev, and the end."""
    (set_up,), (end,) = ([last - first for first, last in spans[name]] for name in ("_set_up", "_results"))
    begun = [last for _, last in spans["_begin_epoch"]]
    steps = [judged - start for start, (judged, _) in zip(begun, spans["_judged"], strict=True)]
    dev = [last - first for first, last in spans["_judged"]]
    return {
        "set-up": set_up,
        "first epoch": steps[0],
        "a later epoch": median(steps[1:] or steps),
        "first dev": dev[0],
        "a later dev": median(dev[1:] or dev),
        "best epoch on dev and test": end,
    }


def one_run(settings: list[str], dataset: str, capture: str) -> tuple[dict[str, float], dict[str, float]]:
    """Train, and take the time of everything from the first file read to the last number on test."""
    config = override(get_recipe(f"rvse_selhn_{dataset}"), [*settings, f"capture={capture}"])
    start = time.perf_counter()
    data = load_data(config.data, **config.data_settings)
    model = make_model(config, data)
    ready = time.perf_counter()
    with watched("_set_up", "_begin_epoch", "_judged", "_results") as spans:
        run = loop.train(model, data, create_loss(config.loss, **config.loss_settings), config=config.train)
    end = time.perf_counter()
    whole = {"total": end - start, "prepare": ready - start, "rsum": run.test.rsum, "dev": run.dev.rsum}
    return whole, parts_of(spans)


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
    rows, parts = [], []
    for capture in arguments.captures:
        for seed in arguments.seeds:
            got, within = one_run([*settings, f"seed={seed}"], arguments.dataset, capture)
            print(json.dumps({"capture": capture, "seed": seed, **got, **within}), flush=True)
            kind = {"always": "recorded", "never": "as written"}[capture]
            numbers = [f"{got[key]:.1f}" for key in ("prepare", "total", "dev", "rsum")]
            rows.append([kind, str(seed), *numbers])
            parts.append([kind, str(seed), *(f"{seconds:.2f}" for seconds in within.values())])
    header = ["steps", "seed", "data and vocabulary, s", "all, s", "dev RSUM", "test RSUM"]
    text = f"# A whole run on {Path(arguments.data).name}\n\n{environment()}\n\n{table(header, rows)}"
    text += f"\n\n{table(['steps', 'seed', *(f'{part}, s' for part in within)], parts)}"
    name = f"full-run-{Path(arguments.data).name}-{'-'.join(arguments.captures)}-{arguments.device}"
    print(f"\n{text}\n\nwritten to {save(name, text, arguments.out)}")


if __name__ == "__main__":
    main()
