"""Pictures per second and core from files to stored features, before and after, beside the vision model alone.

    python benchmarks/extraction.py                     the example pictures
    python benchmarks/extraction.py FOLDER --workers 8
    python benchmarks/extraction.py --index 20000       memory while `selhn index` takes so many generated pictures

Before: torch computes batches of 16 while two threads decode ahead. After: what `selhn index` does. The vision model
alone is the limit; the same model on tensors that are ready. Without the model: all the rest. Time is CPU time of this
process and of those that decode, so it counts work and not waiting; they have been started before, since each decodes
thousands of pictures. All parts of a round run in turn. A core's rate is pictures by CPU seconds.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from report import environment, save, table

from selhn.pictures import extract_pictures, find_pictures, load_extractor, open_picture
from selhn.pictures.backbones import EfficientNetLite
from selhn.pictures.examples import PICTURES

ROUNDS = 5


class Batches(EfficientNetLite):
    """The form before: a batch at once, by torch. It does not name its device, so that batches are not split."""

    def __init__(self):
        super().__init__(2, eager=True)
        del self.device

    def maps(self, pixels):
        """A batch at once."""
        return self._maps(pixels)


class NoModel:
    """All but the vision model: every picture gets the same map."""

    def __init__(self, real):
        self.name, self.width, self.prepare, self.device = real.name, real.width, real.prepare, real.device
        self.map = real.maps(torch.zeros(1, 3, *real.prepare.size))

    def maps(self, pixels):
        """A copy, since a model makes a new one too."""
        return self.map.clone()


def cpu_seconds(compute) -> float:
    """Of this process and of those that decode."""

    def used() -> float:
        decoding = [
            int(Path(f"/proc/{process}/schedstat").read_text().split()[0])
            for process in children(os.getpid())
        ]
        return time.process_time() + 1e-9 * sum(decoding)

    before = used()
    compute()
    return used() - before


def measure_rates(arguments) -> None:
    """Both pipelines and both models, in turn."""
    after = load_extractor()
    before, rest = replace(after, backbone=Batches()), replace(after, backbone=NoModel(after.backbone))
    paths = find_pictures(arguments.folder).pictures
    pixels = torch.stack([after.prepare(open_picture(path).image).pixels for path in paths])
    seen = {}

    def pipeline(name, extractor, **how):
        with tempfile.TemporaryDirectory() as cache:
            found = extract_pictures(paths, extractor, cache=Path(cache), quiet=True, **how)
            assert found.report.computed
            seen[name] = found.features.gather(torch.arange(len(paths)))[0]

    @torch.inference_mode()
    def model(extractor):
        for some in pixels.split(16):
            extractor.backbone.maps(some)

    parts = {
        "before": lambda: pipeline("before", before, workers=2),
        "before, model alone": lambda: model(before),
        "after": lambda: pipeline("after", after, workers=arguments.workers),
        "after, model alone": lambda: model(after),
        "after, without the model": lambda: pipeline("rest", rest, workers=arguments.workers),
    }
    for part in parts.values():
        part()
    rounds = [{name: cpu_seconds(part) for name, part in parts.items()} for _ in range(ROUNDS)]
    middle = {name: statistics.median(one[name] for one in rounds) for name in parts}
    rows = [
        [
            name,
            f"{1e3 * spent / len(paths):.1f}",
            f"{len(paths) / spent:.1f}",
            f"{middle['before'] / spent:.2f}",
        ]
        for name, spent in middle.items()
    ]
    differs = (seen["after"] - seen["before"]).abs().max()
    share = middle["after, model alone"] / middle["after"]
    lines = [
        f"# Extraction: {len(paths)} pictures, {after.backbone.name}, {torch.get_num_threads()} threads",
        environment(),
        table(["", "CPU ms per picture", "pictures/s and core", "times before"], rows),
        f"Share of the model alone: {share:.0%}. Largest difference of the features before and after, which reach "
        f"{seen['before'].max():.1f} and are stored in float16: {differs:.1e}.",
    ]
    text = "\n\n".join(lines)
    print(f"\n{text}\n\nwritten to {save('extraction-cpu', text, arguments.out)}")


def generate(folder: Path, number: int) -> None:
    """Small JPEG files of coarse random colours, all different."""
    chance = np.random.default_rng(0)
    for place in range(number):
        coarse = Image.fromarray(chance.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        part = folder / f"{place // 1000:03}"
        part.mkdir(exist_ok=True)
        coarse.resize((320, 240), Image.Resampling.BILINEAR).save(part / f"{place:06}.jpg", quality=80)


def resident(process: int) -> float:
    """MiB of a process that are its own, and not of files that it has mapped."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))) / 1024


def children(process: int) -> list[int]:
    """Processes that it has started and that run."""
    return [
        int(name)
        for task in Path(f"/proc/{process}/task").iterdir()
        for name in (task / "children").read_text().split()
    ]


def measure_memory(arguments) -> None:
    """Memory of `selhn index` and its decoders, every second."""
    with tempfile.TemporaryDirectory() as base:
        generate_into = Path(base) / "pictures"
        generate_into.mkdir()
        generate(generate_into, arguments.index)
        command = [sys.executable, "-c", "from selhn.cli import main; main()"]
        command += ["index", str(generate_into), "--index", f"{base}/index"]
        environ = {**os.environ, "XDG_CACHE_HOME": f"{base}/cache"}
        start, usage = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        child = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        samples = []
        while child.poll() is None:
            with suppress(OSError):  # one of them has just ended
                samples.append((resident(child.pid), sum(map(resident, children(child.pid)))))
            time.sleep(1)
        assert child.returncode == 0
        lasted = time.monotonic() - start
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = now.ru_utime + now.ru_stime - usage.ru_utime - usage.ru_stime
    rows = []
    for tenth in range(10):
        some = samples[len(samples) * tenth // 10 : len(samples) * (tenth + 1) // 10]
        rows.append(
            [f"{10 * tenth} to {10 * tenth + 10} %", *(f"{max(one[k] for one in some):.0f}" for k in (0, 1))]
        )
    text = "\n\n".join([
        f"# Memory of `selhn index`: {arguments.index:,} pictures of 320 x 240, {len(samples)} samples",
        environment(),
        table(["time", "process, most MiB", "its decoders, most MiB"], rows),
        f"{lasted:.0f} s by the clock, {1e3 * spent / arguments.index:.1f} ms of CPU time per picture.",
    ])  # fmt: skip
    print(f"\n{text}\n\nwritten to {save('extraction-memory', text, arguments.out)}")


def main() -> None:
    """Rates, or memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=PICTURES)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument(
        "--index", type=int, metavar="NUMBER", help="measure memory instead, with generated pictures"
    )
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    (measure_memory if arguments.index else measure_rates)(arguments)


if __name__ == "__main__":
    main()
