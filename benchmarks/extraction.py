"""Pictures a second from files to stored features, beside the vision model alone on tensors that are ready.

    python benchmarks/extraction.py                    the example pictures
    python benchmarks/extraction.py FOLDER --device cuda --batch 64 --workers 8

What the model alone reaches is the limit: reading, decoding, scaling, pooling and storing are done beside it where
there are cores for that. Shares are of times within one run; process time counts the work of all threads, not waiting.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from report import environment, save, table

from selhn.pictures import extract_pictures, find_pictures, load_extractor, open_picture
from selhn.pictures.examples import PICTURES

ROUNDS = 3


def seconds(compute) -> tuple[float, float]:
    """Of the clock, and of work."""
    clock, work = time.perf_counter(), time.process_time()
    compute()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - clock, time.process_time() - work


def main() -> None:
    """Both, in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=PICTURES)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    extractor = load_extractor(device=arguments.device)
    paths = find_pictures(arguments.folder).pictures
    pixels = torch.stack([extractor.prepare(open_picture(path).image).pixels for path in paths])
    how = {"batch_size": arguments.batch, "workers": arguments.workers, "quiet": True}

    def whole() -> None:
        with tempfile.TemporaryDirectory() as cache:
            assert extract_pictures(paths, extractor, cache=Path(cache), **how).report.computed

    @torch.inference_mode()
    def model_alone() -> None:
        for some in pixels.split(arguments.batch):
            extractor.backbone.maps(some)

    model_alone()
    rounds = [(seconds(whole), seconds(model_alone)) for _ in range(ROUNDS)]
    rows = []
    for name, part in (("clock", 0), ("process", 1)):
        ours, limit = (statistics.median(one[which][part] for one in rounds) for which in (0, 1))
        rows.append([name, f"{len(paths) / ours:.1f}", f"{len(paths) / limit:.1f}", f"{limit / ours:.0%}"])
    header = ["time", "files to features, pictures/s", "model alone, pictures/s", "share"]
    title = f"# Extraction: {len(paths)} pictures, {extractor.backbone.name}, {torch.get_num_threads()} threads"
    text = f"{title}\n\n{environment()}\n\n{table(header, rows)}"
    print(f"\n{text}\n\nwritten to {save(f'extraction-{arguments.device}', text, arguments.out)}")


if __name__ == "__main__":
    main()
