"""Camera pictures decoded at a reduced size: how much faster, how near are the vectors, and what do captions find?

    python benchmarks/camera.py f8k_photos/dev --data f8k_pocket
    python benchmarks/camera.py f8k_photos/dev --number 100 --grain 12

Photographs are enlarged to 12 megapixels, with the grain of a sensor on request, and written as JPEGs as a phone does.
Each is then decoded whole and reduced in turn, and embedded by the ready model, in one thread. Times are CPU time of
the first 24, the best of 3 rounds. Recalls are those of the captions of dev, which the ready model was trained on: they
compare the three forms of a picture, and are too high in themselves.
"""

import argparse
import io
import time
from pathlib import Path

import torch
from PIL import Image, ImageChops
from report import environment, save, table

from selhn.data import load_data
from selhn.pictures import decoder, load_extractor
from selhn.pictures.decoding import LIMITS, MOST_PIXELS
from selhn.pictures.ready import load_ready_model

TIMED, ROUNDS = 24, 3
WHOLE = 10**6
"""As `decoder.AMPLE`: no picture is reduced."""


def enlarged(path: Path, megapixels: float, grain: float) -> bytes:
    """A photograph as a camera of so many megapixels might have written it."""
    with Image.open(path) as opened:
        small = opened.convert("RGB")
    factor = (megapixels * 1e6 / (small.width * small.height)) ** 0.5
    large = small.resize(
        (round(small.width * factor), round(small.height * factor)), Image.Resampling.LANCZOS
    )
    if grain:
        noise = Image.merge("RGB", [Image.effect_noise(large.size, grain) for _ in range(3)])
        large = ImageChops.add(large, noise, offset=-128)
    file = io.BytesIO()
    large.save(file, "JPEG", quality=92)
    return file.getvalue()


def decoded(content: bytes, size: tuple[int, int], ample: int) -> Image.Image:
    """What the decoder program returns, without the program."""
    decoder.AMPLE = ample
    return decoder.decode(content, {"most_pixels": MOST_PIXELS, "resized": size, **LIMITS})[0][0]


def main() -> None:
    """Measure and keep the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path)
    parser.add_argument("--data", type=Path, help="folder with the captions of dev, for recalls")
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--megapixels", type=float, default=12)
    parser.add_argument(
        "--grain", type=float, default=0, help="standard deviation of noise added to each pixel"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    decoder.allow_seconds = lambda seconds: None  # it would end this process
    extractor, model, ample = load_extractor(), load_ready_model(), decoder.AMPLE
    size = extractor.backbone.prepare.size[::-1]

    @torch.inference_mode()
    def vector(image: Image.Image) -> torch.Tensor:
        return model.embed_images(extractor([image]))[0]

    split = None if arguments.data is None else load_data(arguments.data, regions=1).dev
    known = sorted(path.name for path in arguments.photos.iterdir())
    names = (known if split is None else list(split.image_names))[: arguments.number]
    forms = {"whole": [], "reduced": [], "the file itself": []}
    times = {"whole": [], "reduced": [], "vector alone": []}
    for row, name in enumerate(names):
        path = arguments.photos / name
        content = enlarged(path, arguments.megapixels, arguments.grain)
        best = {}
        for _ in range(ROUNDS if row < TIMED else 1):
            for form, own in (("whole", WHOLE), ("reduced", ample)):
                start = time.process_time()
                image = decoded(content, size, own)
                middle = time.process_time()
                found = vector(image)
                end = time.process_time()
                best[form] = min(best.get(form, 9.0), end - start)
                best["vector alone"] = min(best.get("vector alone", 9.0), end - middle)
                best[f"{form} vector"] = found
        if row < TIMED:
            for form, kept in times.items():
                kept.append(best[form])
        forms["whole"].append(best["whole vector"])
        forms["reduced"].append(best["reduced vector"])
        with Image.open(path) as small:
            forms["the file itself"].append(vector(small.convert("RGB")))
    vectors = {form: torch.stack(rows) for form, rows in forms.items()}
    lines = [
        f"{len(names)} photographs at {arguments.megapixels:g} megapixels, grain {arguments.grain:g}",
        environment(),
        "",
    ]
    mean = {form: 1e3 * sum(kept) / len(kept) for form, kept in times.items()}
    lines += [table(["decoded", "CPU ms to the vector", "of it the vector"], [
        [form, f"{mean[form]:.1f}", f"{mean['vector alone']:.1f}"] for form in ("whole", "reduced")
    ]), "", f"ratio {mean['whole'] / mean['reduced']:.2f}", ""]  # fmt: skip
    lines.append(table(["cosine with whole", "mean", "1 in 100 below", "least"], [
        [form, f"{near.mean():.4f}", f"{near.quantile(0.01):.4f}", f"{near.min():.4f}"]
        for form, near in ((form, torch.cosine_similarity(own, vectors["whole"])) for form, own in vectors.items())
        if form != "whole"
    ]))  # fmt: skip
    if split is not None:
        texts = split.image_of_text < len(names)
        captions = [caption for caption, own in zip(split.captions, texts) if own]
        asked, owner = model.embed_texts(captions), split.image_of_text[texts]
        rows, first = [], {}
        for form, own in vectors.items():
            scores = asked @ own.T
            rank = (scores > scores.gather(1, owner[:, None])).sum(1)
            rows.append([form, *(f"{100 * (rank < k).float().mean():.2f}" for k in (1, 5, 10))])
            first[form] = scores.topk(min(10, len(names))).indices
        lines += ["", table(["captions find", "R@1", "R@5", "R@10"], rows)]
        same = [
            len(set(a) & set(b)) / len(a) for a, b in zip(first["whole"].tolist(), first["reduced"].tolist())
        ]
        lines += [
            "",
            f"the ten best of a caption, whole and reduced: {100 * sum(same) / len(same):.1f} % the same",
        ]
    text = "\n".join(lines)
    print(text)
    save("camera-grain-cpu" if arguments.grain else "camera-cpu", text, arguments.out)


if __name__ == "__main__":
    main()
