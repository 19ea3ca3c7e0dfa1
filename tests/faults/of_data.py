"""Data in every format, captions and logs of others, pictures."""

import base64
import json
from functools import cache
from pathlib import Path

import numpy as np
import torch
from diagnose.event_files import HEADER, scalar_event
from faults.reader import Reader, of_data, of_split, small_data
from model_cases import make_model
from picture_cases import TinyBackbone, animated_gif, dng, encoded, exif_of, heic, photo, turned_jpeg, video
from run_cases import rows

from selhn.data import DenseFeatures, Split, load_data, read_truth
from selhn.data.check import check
from selhn.data.formats import read_splits
from selhn.data.formats.captions import read_picture_texts
from selhn.data.formats.data_report import Report
from selhn.data.formats.native import write_native
from selhn.diagnose import diagnose
from selhn.export import towers_of
from selhn.pictures import Extractor, Library
from selhn.pictures.dataset import collect_region_files
from selhn.pictures.decoding import decode_video
from selhn.pictures.extraction import extract_pictures
from selhn.pictures.facts import FACTS
from selhn.pictures.picture_files import drawn, open_picture, picture_source, read_facts
from selhn.pictures.picture_folders import locate, read_located
from selhn.search import Index

PICTURES = {
    "jpg": lambda: encoded(photo(1)),
    "progressive.jpg": lambda: encoded(photo(2), progressive=True),
    "turned.jpg": turned_jpeg,
    "phone.jpg": lambda: encoded(photo(1), exif=exif_of().tobytes()),
    "cmyk.jpg": lambda: encoded(photo(4, mode="CMYK")),
    "png": lambda: encoded(photo(2), "PNG"),
    "alpha.png": lambda: encoded(photo(3, mode="RGBA"), "PNG"),
    "palette.png": lambda: encoded(photo(8, mode="P"), "PNG"),
    "gif": animated_gif,
    "avif": lambda: encoded(photo(5), "AVIF", exif=exif_of(orientation=6).tobytes()),
    "heic": lambda: heic(photo(5, (64, 48)), exif_of(orientation=6).tobytes()),
    "several.heic": lambda: heic(photo(5), others=[photo(6), photo(7)], primary=1),
    "dng": lambda: dng(encoded(photo(5)), orientation=6),
    "bitmap.dng": lambda: dng(bitmap=photo(5)),
    "webp": lambda: encoded(photo(5), "WEBP"),
    "bmp": lambda: encoded(photo(6), "BMP"),
    "tiff": lambda: encoded(photo(7), "TIFF"),
    "lzw.tiff": lambda: encoded(photo(7), "TIFF", compression="tiff_lzw"),
    "ppm": lambda: encoded(photo(9), "PPM"),
    "plain.ppm": lambda: b"P3\n4 3\n255\n" + b" ".join(str(n * 7 % 256).encode() for n in range(36)) + b"\n",
}
CAPTIONS = [
    ("a.jpg", "a dog jumps"),
    ("a.jpg", "a dog, over a fence"),
    ("b/c.png", 'two "old" men'),
    ("d.jpg", "snow"),
]
KARPATHY = {
    "images": [
        {"filename": f"{n}.jpg", "imgid": n, "cocoid": 100 + n, "split": ("train", "val", "test", "restval")[n % 4],
         "sentences": [{"raw": f"a dog number {n}"}, {"raw": f"number {n} jumps"}]}
        for n in range(8)
    ]
}  # fmt: skip


def floats(*shape, seed=0):
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def make_precomp(folder):
    for number, name in enumerate(("train", "dev", "test")):
        np.save(folder / f"{name}_ims.npy", floats(4, 3, 6, seed=number))
        (folder / f"{name}_caps.txt").write_text("".join(f"caption {n} of {name}\n" for n in range(8)))
        (folder / f"{name}_ids.txt").write_text("".join(f"{100 * number + n}\n" for n in range(4)))
        np.save(folder / f"{name}_boxes.npy", floats(4, 3, 4, seed=number) * 90 + 5)
        np.save(folder / f"{name}_img_sizes.npy", np.full((4, 2), 100))
        np.save(folder / f"{name}_concepts.npy", floats(8, 2, seed=number))
        (folder / f"{name}_caps.json").write_text(
            json.dumps([[[0, 2], [2, 1], [2, n % 4]] for n in range(8)])
        )
    (folder / "dev_image_of_text.txt").write_text("0\n0\n1\n1\n2\n2\n3\n3\n")
    (folder / "id_mapping.json").write_text(json.dumps({f"{n}": f"{n}.jpg" for n in range(300)}))


def make_pocket(folder):
    for number, name in enumerate(("train", "dev", "test")):
        np.save(folder / f"{name}_ims.npy", (floats(4, 3, 6, seed=number) * 200 - 100).astype(np.int8))
        (folder / f"{name}_caps.txt").write_text("".join(f"caption {n} of {name}\n" for n in range(8)))
        (folder / f"{name}_ids.txt").write_text("".join(f"{100 * number + n}\n" for n in range(4)))
    np.savez(folder / "projection.npz", mean=floats(10), components=floats(10, 6), scale=floats(6))


def make_ragged(folder):
    """Our own format, with numbers of regions that differ, and boxes."""
    write_native(small_data(), folder / "data")
    content = json.loads((folder / "data" / "data.json").read_text())
    np.save(folder / "data" / "train_features.npy", floats(20, 12))
    np.save(folder / "data" / "train_offsets.npy", np.array([0, 2, 4, 6, 8, 11, 14, 17, 20]))
    np.save(folder / "data" / "test_boxes.npy", floats(8, 3, 4))
    content["splits"]["train"]["offsets"] = "train_offsets.npy"
    content["splits"]["test"]["boxes"] = "test_boxes.npy"
    np.save(folder / "data" / "test_dependencies.npy", np.full((16, 2, 2), 1))
    content["splits"]["test"]["dependencies"] = "test_dependencies.npy"
    (folder / "data" / "data.json").write_text(json.dumps(content))


def make_karpathy(folder):
    (folder / "dataset_small.json").write_text(json.dumps(KARPATHY))
    np.save(folder / "features.npy", floats(8, 3, 6))


def make_tsv(folder):
    (folder / "dataset_small.json").write_text(json.dumps(KARPATHY))
    lines = []
    for n in range(8):
        fields = [
            f"{100 + n}",
            "64",
            "48",
            "3",
            *(base64.b64encode(floats(3, k, seed=n).tobytes()).decode() for k in (4, 6)),
        ]
        lines.append("\t".join(fields) + "\n")
    (folder / "features.tsv").write_text("".join(lines))


def read_tsv_data(folder):
    report = Report()
    _, splits = read_splits(folder, "tsv", report)
    report.raise_problems()
    return [of_split(split) for split in splits.values()]


def read_data(folder, **settings):
    data = load_data(folder, **settings)
    said = check(folder)
    return of_data(data), said.lines, said.warnings, said.problems


def captions(name, content):
    return Reader(
        lambda folder: (folder / name).write_text(content), lambda folder: read_picture_texts(folder / name)
    )


def as_json_lines(name):
    return "".join(
        json.dumps({"image": image, "caption": text, "split": "train"}) + "\n" for image, text in CAPTIONS
    )


def make_truth(folder):
    images = [{"split": "test", "filename": f"{n}.jpg", "cocoid": n, "sentences": [{"raw": f"text {n}", "sentid": n}]}
              for n in range(4)]  # fmt: skip
    (folder / "dataset_coco.json").write_text(json.dumps({"images": images}))
    for file in ("eccv_image_to_caption.json", "eccv_caption_to_image.json"):
        (folder / file).write_text(json.dumps({str(n): [n, (n + 1) % 4] for n in range(4)}))


def read_truth_files(folder):
    names, texts = [f"{n}.jpg" for n in range(4)], [f"text {n}" for n in range(4)]
    split = Split("test", DenseFeatures(torch.zeros(4, 1, 2)), texts, torch.arange(4), names)
    found = read_truth(folder, split, folder / "dataset_coco.json")
    return found.of_images.tolist(), found.of_texts.tolist()


COCO = {
    "images": [{"id": n, "file_name": f"{n}.jpg"} for n in range(3)],
    "annotations": [{"image_id": n % 3, "id": n, "caption": f"caption {n}"} for n in range(6)],
}
OBJECTS = [
    {"file_name": "a.jpg", "captions": ["a dog", "jumps"], "split": "val"},
    {"file_name": "b.jpg", "captions": ["b"]},
]


def log(name, content):
    def make(folder):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    def read(folder):
        found = diagnose(folder / name)
        return (
            found.verdict,
            found.log.steps,
            found.log.columns,
            found.log.evaluated,
            found.log.dev,
            found.plateau,
        )

    return Reader(make, read)


def as_table(delimiter=","):
    plain = [row for row in rows() if "loss" in row]
    head = delimiter.join(plain[0])
    return "\n".join([head, *(delimiter.join(map(str, row.values())) for row in plain)]) + "\n"


def picture(name, content):
    def read(folder):
        found = open_picture(folder / f"photo.{name}")
        assert read_located(locate([folder.resolve()], f"photo.{name}"))
        facts = read_facts(folder / f"photo.{name}")
        assert set(facts) <= set(FACTS)
        small = small_copy(folder / f"photo.{name}")
        return found.image.size, found.image.tobytes(), found.notes, found.facts, facts, small

    return Reader(lambda folder: (folder / f"photo.{name}").write_bytes(content()), read)


def small_copy(path):
    return drawn(picture_source(str(path)), path.name, 8)


def make_video(folder):
    (folder / "clip.mp4").write_bytes(video([photo(1, (64, 48)), photo(2, (64, 48))], each=2))


def read_video(folder):
    path = folder / "clip.mp4"
    found = decode_video(path.resolve(), "clip.mp4", resized=(24, 24))
    assert set(found[0].facts) <= set(FACTS)
    return [(frame.at, frame.image.tobytes(), frame.facts) for frame in found], small_copy(path)


def make_pictures(folder):
    for name in ("jpg", "alpha.png", "gif", "heic"):
        (folder / f"photo.{name}").write_bytes(PICTURES[name]())


def read_pictures(folder):
    """What indexing a folder makes of it: files that cannot be read are named, and the others are used."""
    paths = sorted(folder.glob("photo.*"))
    found = extract_pictures(
        paths, Extractor(TinyBackbone()), cache=folder / "cache", workers=1, quiet=True, root=folder
    )
    regions = [found.features.images([row])[0] for row in range(len(found.paths))]
    return [path.name for path in found.paths], regions, found.report.refused


@cache
def library_model():
    return make_model("vse_fc", feature_dim=TinyBackbone.width)


def read_upload(folder):
    """A picture that is posted to the service, kept, and removed again."""
    content = (folder / "photo.jpg").read_bytes()
    index = Index.create(towers_of(library_model()), about={"extractor": "tiny"}, keep_towers=False)
    library = Library(index, Extractor(TinyBackbone()), [folder])
    library.__dict__["extractor"] = library._given
    name = library.add(content, captions=("a dog",))
    vectors = [(images, texts) for _, images, texts in index.embeddings()]
    library.delete(name)
    return vectors, name, library.vector(folder / "photo.jpg")


def make_regions(folder):
    (folder / "regions").mkdir()
    np.save(folder / "regions" / "a.npy", floats(3, 6))
    np.savez(folder / "regions" / "b.npz", features=floats(3, 6, seed=1))
    np.savez(folder / "regions" / "c.npz", x=floats(2, 6, seed=2))


def read_region_files(folder):
    found = collect_region_files(folder / "regions", cache=folder / "cache")
    regions = [found.features.images([row])[0] for row in range(len(found.paths))]
    return [path.name for path in found.paths], regions, found.report.refused


LOGS = Path(__file__).parents[1] / "diagnose" / "logs"
PRINTED = "".join(
    f"2026-01-01 10:00:00,000 Epoch: [0][{n}/700]\tEit {n}  lr 0.0002  Le {52 - n / 9:.4f} ({52 - n / 20:.4f})  "
    f"Time 0.{n:03} (0.000)\n"
    + (
        "Image to text: 12.5, 30.1, 42.0, 15.0, 70.2\nText to image: 9.5, 26.1, 38.0, 21.0, 88.2\n"
        if n % 100 == 99
        else ""
    )
    for n in range(0, 300, 3)
)
"""As VSE++ prints it."""


READERS = {
    "data, native": Reader(
        lambda folder: write_native(small_data(), folder / "data"), lambda folder: read_data(folder / "data")
    ),
    "data, native ragged": Reader(make_ragged, lambda folder: read_data(folder / "data")),
    "data, precomp": Reader(make_precomp, read_data),
    "data, pocket": Reader(make_pocket, read_data),
    "data, Karpathy": Reader(make_karpathy, read_data),
    "data, TSV": Reader(make_tsv, read_tsv_data),
    "regions of others": Reader(make_regions, read_region_files),
    "truth of COCO": Reader(make_truth, read_truth_files),
    "captions, CSV": captions(
        "captions.csv", "image,caption\n" + "".join(f'{name},"{text}"\n' for name, text in CAPTIONS[:2])
    ),
    "captions, lines": captions("captions.jsonl", as_json_lines(CAPTIONS)),
    "captions, tokens": captions(
        "token.txt", "".join(f"{name}#{n}\t{text}\n" for n, (name, text) in enumerate(CAPTIONS))
    ),
    "captions, Karpathy": captions("dataset.json", json.dumps(KARPATHY)),
    "captions, COCO": captions("coco.json", json.dumps(COCO)),
    "captions, objects": captions("list.json", json.dumps(OBJECTS)),
    "log, lines": log("log.jsonl", "".join(json.dumps(row) + "\n" for row in rows())),
    "log, list": log("log.json", json.dumps(list(rows()))),
    "log, CSV": log("log.csv", as_table()),
    "log, TSV": log("log.tsv", as_table("\t")),
    "log, TensorBoard": log(
        "events.out.tfevents.1",
        HEADER + b"".join(scalar_event(n, train__loss=0.3 - n / 500, delta_s=n / 1000) for n in range(1, 60)),
    ),
    "log, trainer_state": log("trainer_state.json", (LOGS / "trainer_state.json").read_bytes()),
    "log, printed": log("train.log", PRINTED),
    "pictures of a folder": Reader(make_pictures, read_pictures, share=0.5),
    "picture, posted": Reader(
        lambda folder: (folder / "photo.jpg").write_bytes(encoded(photo(1))), read_upload, share=0.5
    ),
    **{f"picture, {name}": picture(name, content) for name, content in PICTURES.items()},
    "video": Reader(make_video, read_video, share=0.5),
}
