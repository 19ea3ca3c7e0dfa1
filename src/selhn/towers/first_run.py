"""The first run of a stranger's towers: in a process of its own, with limits on time and memory.

What a network does with its input cannot be read off its file: a node of 50 bytes may ask for a terabyte. So a picture
and the longest sentence go through it once where that does no harm. A folder that passed is remembered by its content.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from selhn.base.errors import Damaged, SelhnError
from selhn.base.files import cache_folder, private_folder, write_whole

CHECKS = 1
"""Raised when folders that passed have to be checked again."""
SECONDS, SECONDS_PER_GIB = 60, 60
MEMORY, MEMORY_PER_BYTE = 3 * 2**30, 4
"""Address space beyond that of an empty process, and more per byte of the folder."""
LONGEST = 1000
"""Words of the longest sentence, if the towers have no limit of their own."""
REGIONS = 36
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from selhn.towers.first_run import main; main()"
)


def has_passed(description: bytes) -> bool:
    """Whether a folder with this `towers.json`, which has the checksums of all files, has passed before."""
    with suppress(PermissionError):
        return _mark(description).is_file()
    return False


def remember(description: bytes) -> None:
    """Note that a folder with this `towers.json` has passed, or was written here."""
    mark = _mark(description)
    with suppress(OSError):  # then it is checked again next time
        private_folder(mark.parent)
        write_whole(mark, "", private=True)


def _mark(description: bytes) -> Path:
    return cache_folder() / "towers" / f"{sha256(description).hexdigest()}.{CHECKS}"


def first_run(folder: Path, size: int) -> None:
    """Refuse towers that fail, or need too much time or memory, on their first picture and sentences.

    Args:
        size: bytes of the folder.
    """
    seconds = SECONDS + SECONDS_PER_GIB * size // 2**30
    request = {"folder": str(folder), "seconds": seconds, "memory": MEMORY + MEMORY_PER_BYTE * size}
    # Isolated, so that the current folder, which may be a stranger's, is not searched for modules.
    command = [sys.executable, "-ISW", "ignore", "-c", _PROGRAM, json.dumps(sys.path), json.dumps(request)]
    again = "export the model again, or do not use it"
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=2 * seconds)
    except subprocess.TimeoutExpired:
        raise Damaged(f"the first run of {folder} took more than {2 * seconds} seconds: {again}") from None
    except OSError as error:
        raise SelhnError(
            f"cannot start a process to try {folder} ({error.strerror}): try again later"
        ) from None
    said = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode or said != "passed":
        why = said[:500] or f"its process ended with status {done.returncode}: too much time or memory"
        raise Damaged(f"the first run of {folder} failed ({why}): {again}")


def _limit(seconds: int, memory: int) -> None:
    with suppress(ImportError, OSError, ValueError):  # not Linux, or a lower limit is set already
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        for kind, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, now + memory)):
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def _try(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    from selhn.towers.description import Description
    from selhn.towers.towers import Towers

    towers = Towers(folder, Description.read(folder))
    text, image = towers.description.text, towers.description.image
    towers.embed_texts(["a", "a " * (text.max_length or text.pad_to or LONGEST)])
    if image.input == "pixels":
        prepared = towers.prepare(Image.new("RGB", (64, 48), "grey"))
        towers.embed_prepared([prepared, prepared])
        towers.embed_parts(prepared)
    else:
        number = towers.num_regions or REGIONS
        regions = np.full((2, number, image.feature_dim or 0), 0.1, np.float32)
        towers.embed_regions(regions, np.ones((2, number), bool))


def main() -> None:
    """In the process of its own."""
    request = json.loads(sys.argv[2])
    os.environ["OMP_NUM_THREADS"] = "1"
    from selhn.towers.onnx_session import import_onnxruntime

    import_onnxruntime()
    _limit(request["seconds"], request["memory"])
    try:
        _try(Path(request["folder"]))
    except (SelhnError, MemoryError) as wrong:
        print(str(wrong) or "it does not fit into memory")
        sys.exit(1)
    print("passed")
