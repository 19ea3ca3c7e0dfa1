"""The page with many pictures in headless Chromium: first picture, scrolling, jumps along the timeline, memory.

    python benchmarks/page.py                     1,000 and 100,000 pictures, some minutes
    python benchmarks/page.py --items 20000

The server is a process of its own. The items are links to 200 generated photographs of several shapes, spread over
ten years, so thumbnails are decoded 200 times and then kept. `first picture` is from the address to the first
thumbnail drawn, with a cold and with a warm server. `scrolling` moves the page by 3,000 pixels a second for some
seconds; `slowest` is the 95th percentile of the time between two frames. `jump` is from a click on the timeline to the
pictures there. Memory is that of the tab (heap of the scripts; private memory of its process). Chromium draws without
a GPU, on the same cores as the server.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from report import environment, save, table

from selhn.export import towers_of

SHAPES = ((1200, 800), (800, 1200), (1000, 1000), (1600, 900), (1200, 900))
DIFFERENT, WIDTH = 200, 64
FIRST = """document.addEventListener("load", (event) => {
    if (event.target.matches?.(".frame img")) window.first ??= performance.now(); }, { capture: true })"""
SCROLL = """(seconds) => new Promise((done) => {
    const times = [], start = performance.now();
    const step = (now) => {
        times.push(now);
        scrollTo(0, 3 * (now - start));
        if (now - start < 1000 * seconds) requestAnimationFrame(step); else done(times);
    };
    requestAnimationFrame(step); })"""
JUMP = """async (share) => {
    const bar = document.getElementById("scrubber"), box = bar.getBoundingClientRect(), start = performance.now();
    const at = { clientX: box.x + 9, clientY: box.y + box.height * share, pointerId: 1, bubbles: true };
    bar.setPointerCapture = () => {};
    for (const name of ["pointerdown", "pointerup"]) bar.dispatchEvent(new PointerEvent(name, at));
    const near = ({ top, bottom }) => bottom > 150 && top < innerHeight;
    const seen = () => [...document.querySelectorAll(".card")].filter((card) => near(card.getBoundingClientRect()));
    do await new Promise((done) => setTimeout(done, 5));
    while (scrollY < 1 || !seen().length || !seen().every((card) => card.querySelector("img.come")));
    return performance.now() - start; }"""


def make(folder: Path, number: int) -> None:
    """An index of so many links to a few pictures."""
    import numpy as np
    import torch
    from PIL import Image

    from selhn.models import create_model
    from selhn.search import Index, Item
    from selhn.text import Vocabulary

    generator = np.random.default_rng(0)
    (folder / "own").mkdir(parents=True)
    for one in range(DIFFERENT):
        coarse = Image.fromarray(generator.integers(0, 256, (9, 12, 3), dtype=np.uint8))
        coarse.resize(SHAPES[one % len(SHAPES)], Image.Resampling.BICUBIC).save(
            folder / "own" / f"{one}.jpg", quality=85
        )
    torch.manual_seed(0)
    model = create_model("rvse", tokenizer=Vocabulary.build(["a dog"], 1), feature_dim=4, dim=WIDTH).eval()
    index = Index.create(towers_of(model), folder / "index")
    random.seed(0)

    def items() -> Any:
        for one in range(number):
            path = folder / "Pictures" / f"{one // 1000:03}" / f"IMG_{one:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(folder / "own" / f"{one % DIFFERENT}.jpg", path)
            width, height = SHAPES[one % DIFFERENT % len(SHAPES)]
            taken = datetime(2026, 1, 1) - timedelta(seconds=int(random.random() * 10 * 365 * 86400))
            facts = {
                "folder": path.parent.name,
                "file": path.name,
                "taken": str(taken),
                "width": width,
                "height": height,
            }
            yield Item(str(path), None, torch.nn.functional.normalize(torch.randn(WIDTH), dim=0), (), facts)

    index.add(items())


def serve(folder: Path) -> None:
    """The server: says its port, then answers."""
    import torch

    from selhn.pictures import Library
    from selhn.search import Index
    from selhn.serve.app import create_app
    from selhn.serve.collection import Collection
    from selhn.serve.service import Service
    from selhn.serve.start import listen, run_server

    torch.set_num_threads(1)
    library = Library(Index.load(folder / "index"), None, [folder / "Pictures"], "Many pictures")
    service = Service(Collection(library))
    listening = listen("127.0.0.1", 0)
    print(listening.getsockname()[1], flush=True)
    run_server(create_app(service), listening, service.limits)


def private(process: int) -> float:
    """Megabytes that belong to a process alone."""
    told = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(int(kib) for kib in re.findall(r"Private_\w+:\s+(\d+) kB", told)) / 1024


def renderers() -> set[int]:
    """Processes that draw the tabs of a Chromium."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"--type=renderer" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except OSError:  # it has ended
            continue
    return found


def measure(address: str, chromium: str, seconds: float) -> list[str]:
    """One row of the table."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        firsts = []
        for _ in range(2):
            before = renderers()
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            page.add_init_script(FIRST)
            page.goto(address)
            page.wait_for_selector("img.come")
            firsts.append(page.evaluate("window.first"))
            page.wait_for_timeout(1500)
        times = page.evaluate(SCROLL, seconds)
        between = sorted(after - one for one, after in zip(times, times[1:]))
        jumps = sorted(page.evaluate(JUMP, share) for share in (0.9, 0.3, 0.6, 0.15, 0.75))
        nodes = page.evaluate("document.querySelectorAll('*').length")
        session = page.context.new_cdp_session(page)
        session.send("HeapProfiler.collectGarbage")
        heap = session.send("Runtime.getHeapUsage")["usedSize"] / 2**20
        memory = max(map(private, renderers() - before))
        browser.close()
    rate, slowest = 1000 * len(between) / sum(between), between[int(0.95 * len(between))]
    words = [f"{firsts[0] / 1000:.1f} s, {firsts[1] / 1000:.1f} s", f"{rate:.0f} fps", f"{slowest:.0f} ms"]
    return [*words, f"{jumps[2] / 1000:.2f} s", f"{nodes:,}", f"{heap:.0f} MB", f"{memory:.0f} MB"]


def main() -> None:
    """Measure each number of items."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help="keep the table in benchmarks/results")
    asked = parser.parse_args()
    if asked.serve is not None:
        serve(asked.serve)
        return
    rows = []
    for number in asked.items:
        with tempfile.TemporaryDirectory() as name:
            folder, start = Path(name).resolve(), time.perf_counter()
            make(folder, number)
            print(f"{number:,} items made in {time.perf_counter() - start:.0f} s", flush=True)
            command = [sys.executable, __file__, "--serve", str(folder)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout is not None
                try:
                    address = f"http://127.0.0.1:{int(server.stdout.readline())}"
                    rows.append([f"{number:,}", *measure(address, asked.chromium, asked.seconds)])
                finally:
                    server.terminate()
    header = ["items", "first picture: cold, warm", "scrolling", "slowest", "jump", "elements", "heap", "tab"]
    told = f"{environment()}\n\n{table(header, rows)}"
    print(told)
    if asked.save:
        save("page-cpu", f"# The page with many pictures\n\n{told}")


if __name__ == "__main__":
    main()
