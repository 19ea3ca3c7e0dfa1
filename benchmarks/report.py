"""What all benchmarks share: where they ran, and results kept as dated Markdown."""

import datetime
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def environment() -> str:
    """One line that says on what, with what, and by which command a table was measured."""
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    else:
        device = f"CPU, {os.cpu_count()} cores, {platform.machine()}"
    command = " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    return f"{device}; torch {torch.__version__}; Python {platform.python_version()}; commit {commit()}; `{command}`"


def commit() -> str:
    """The commit measured, with a plus sign where the sources had changes; SELHN_COMMIT names it where git is not."""
    here = Path(__file__).parent
    if "SELHN_COMMIT" in os.environ:
        return os.environ["SELHN_COMMIT"]
    try:
        name = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=here, text=True).strip()
        changed = subprocess.check_output(
            ["git", "status", "--porcelain", "--", "../src"], cwd=here, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changed.strip() else "")


def matmul_rate(device: str, dtype: torch.dtype, size: int | None = None, repeats: int = 10) -> float:
    """Operations a second of one large product of random matrices: what can be had here, and no datasheet's number."""
    size = size or (8192 if device == "cuda" else 1024)
    left, right = torch.randn(2, size, size, device=device).to(dtype)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(repeats + 3):
        wait()
        start = time.perf_counter()
        left @ right
        wait()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / sorted(times[3:])[repeats // 2]


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, also easy to read as text."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        [cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths))]
        for row in [header, ["-" * width for width in widths], *rows]
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def save(name: str, text: str, folder: Path | None = None) -> Path:
    """Write `results/DATE-name.md`."""
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.date.today()}-{name}.md"
    path.write_text(text + "\n")
    return path
