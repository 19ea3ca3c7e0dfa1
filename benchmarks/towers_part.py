"""One checkout's part of `towers.py speed`, in a process of its own: python benchmarks/towers_part.py before FOLDER."""

import io
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROUNDS, ROWS = 5, 2000


def cpu_seconds() -> float:
    """Of this process and of those that decode for it."""
    used = 0.0
    for thread in Path("/proc/self/task").iterdir():
        for child in (thread / "children").read_text().split():
            with suppress(OSError):
                used += 1e-9 * int(Path(f"/proc/{child}/schedstat").read_text().split()[0])
    return time.process_time() + used


def least(function, *arguments) -> float:
    """CPU seconds of the quickest round; the first is not counted, since it starts what decodes."""
    function(*arguments)
    times = []
    for _ in range(ROUNDS):
        start = cpu_seconds()
        function(*arguments)
        times.append(cpu_seconds() - start)
    return min(times)


def before(paths):
    """Files to vectors by an extractor and the model in torch."""
    import torch

    from selhn.pictures import extract_pictures, load_extractor
    from selhn.pictures.ready import load_ready_model

    torch.set_num_threads(1)
    extractor, model = load_extractor(), load_ready_model()

    def compute():
        with tempfile.TemporaryDirectory() as cache:
            found = extract_pictures(paths, extractor, cache=Path(cache), workers=1, quiet=True)
            return model.embed_images(found.features.gather(torch.arange(len(paths)))[0])

    return compute, extractor.backbone._session._session, "pixels", (10, 1280, "float16")


def after(paths):
    """Files to vectors by towers."""
    from selhn.pictures.cache import FeatureCache
    from selhn.pictures.extraction import Extraction
    from selhn.pictures.tower_vectors import TowerVectors
    from selhn.towers import open_towers

    vectors = TowerVectors(open_towers("ready"))

    def compute():
        with tempfile.TemporaryDirectory() as cache:
            store = FeatureCache(cache, vectors.cached_as, vectors.width, "float32")
            return [one.vector for one in Extraction(paths, vectors, store, workers=1, quiet=True)]

    compute()
    session = vectors.towers._session("image.onnx")._session
    return compute, session, "pixels", (1, vectors.width, "float32")


def plain(paths, session, name):
    """onnxruntime on the network, and Pillow."""
    import numpy as np
    from PIL import Image

    def compute():
        for path in paths:
            image = Image.open(io.BytesIO(path.read_bytes()))
            image.draft("RGB", (520, 520))
            pixels = np.asarray(image.convert("RGB").resize((260, 260), Image.Resampling.BICUBIC), np.float32)
            session.run(None, {name: np.ascontiguousarray((pixels - 127).transpose(2, 0, 1)[None] / 128)})

    return compute


def cache_bytes(rows: int, width: int, precision: str) -> float:
    """Bytes on the disk per picture, of two thousand."""
    import hashlib

    import torch

    from selhn.pictures.cache import FeatureCache

    with tempfile.TemporaryDirectory() as folder:
        store = FeatureCache(folder, "a model", width, precision)
        for first in range(0, ROWS, 16):
            keys = [hashlib.sha256(str(number).encode()).digest() for number in range(first, first + 16)]
            store.put(dict(zip(keys, torch.randn(16, rows, width))))
        store.close()
        return os.path.getsize(store.path) / ROWS


def main() -> None:
    """Measure one checkout."""
    which, folder = sys.argv[1], Path(sys.argv[2])
    found = {}
    for kind, name in (("320 px", "small"), ("12 MP", "large")):
        paths = sorted((folder / name).iterdir())
        compute, session, taken, kept = {"before": before, "after": after}[which](paths)
        found[f"{kind}, CPU ms"] = 1e3 * least(compute) / len(paths)
        found[f"{kind}, plain, CPU ms"] = 1e3 * least(plain(paths, session, taken)) / len(paths)
    found["cache, KB per picture"] = 1e-3 * cache_bytes(*kept)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
