"""Train and measure the ready model that travels with the package: RVSE++ on a frozen MiniLM, heads only.

    python benchmarks/ready_model.py train --data f8k_pocket --work states --loss tal --out runs/tal
    python benchmarks/ready_model.py pack --data f8k_pocket --run runs/tal --out src/selhn/pictures/ready
    python benchmarks/ready_model.py measure --data f8k_pocket --photos f8k_test100

The states of all captions are computed once and kept as float16 in a file, so that the heads train on one core in
minutes. Words and regions are left out at random, a fifth of each, and single numbers by dropout. `measure` reads the
file that is shipped, scores all test images from their stored features and, with `--photos`, the first of them again
from the pictures themselves.
"""

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import dropout

from selhn.data import DenseFeatures, Projection, Split, load_data
from selhn.data.formats.pocket import read_projection
from selhn.eval import Metrics, evaluate, recall_from_embeddings
from selhn.losses import AbstractLoss, create_loss
from selhn.models import VSE, create_model, load_model
from selhn.pictures import extract_pictures, load_extractor
from selhn.pictures.ready import (
    CONFIG_FILE,
    HEADS_FILE,
    PROJECTION_FILE,
    head_weights,
    load_ready_model,
    load_ready_projection,
    tower_sample,
)

REGIONS = 10
BATCH, RATE, CLIP, DROPPED = 128, 5e-4, 2.0, 0.2
REGION_DROPOUT, STATE_DROPOUT = 0.2, 0.1
LOSSES = {"tal": {"temperature": 0.05, "margin": 0.2}, "selhn": {}}


@dataclass
class States:
    """What MiniLM says of every token of a split, all texts one after the other."""

    states: np.ndarray
    offsets: Tensor

    @classmethod
    def of(cls, model: VSE, split: Split, work: Path) -> "States":
        """From the file, or computed now."""
        tokens, mask = model.tokenize(list(split.captions))
        lengths = mask.sum(1)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        path = work / f"{split.name}_states.npy"
        if not path.exists():
            work.mkdir(parents=True, exist_ok=True)
            shape = (int(offsets[-1]), model.text.words.width)
            partial = np.lib.format.open_memmap(path.with_suffix(".part"), "w+", np.float16, shape)
            for rows in lengths.argsort().split(BATCH):  # texts of one length together need no padding
                longest = int(lengths[rows].max())
                found = model.text.words(tokens[rows, :longest], mask[rows, :longest]).half().numpy()
                for row, states in zip(rows.tolist(), found):
                    partial[offsets[row] : offsets[row + 1]] = states[: lengths[row]]
            partial.flush()
            path.with_suffix(".part").rename(path)
        return cls(np.load(path, mmap_mode="r"), offsets)

    def take(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """States and mask of some texts."""
        first, lengths = self.offsets[texts], self.offsets[texts + 1] - self.offsets[texts]
        steps = torch.arange(int(lengths.max()))
        mask = steps < lengths[:, None]
        states = torch.zeros(*mask.shape, self.states.shape[1])
        states[mask] = torch.from_numpy(self.states[(first[:, None] + steps)[mask].numpy()].astype(np.float32))
        return states, mask


def dropped(mask: Tensor) -> Tensor:
    """The mask with a fifth left out, but never the last one."""
    draw = torch.rand(mask.shape).masked_fill(~mask, -1)
    return mask & ((draw >= DROPPED) | (draw == draw.amax(1, keepdim=True)))


@torch.no_grad()
def metrics(model: VSE, regions: Tensor, states: States, image_of_text: Tensor) -> Metrics:
    """Recalls of the heads on cached states."""
    model.eval()
    mask = torch.ones(REGIONS, dtype=torch.bool)
    images = torch.cat([model.encode_images(part, mask.expand(len(part), -1)) for part in regions.split(500)])
    texts = torch.cat([model.text.head(*states.take(part)) for part in torch.arange(len(image_of_text)).split(500)])
    model.train()
    return recall_from_embeddings(images, texts, image_of_text)


def train(arguments: argparse.Namespace) -> None:
    """The heads, best epoch by dev."""
    torch.manual_seed(arguments.seed)
    data = load_data(arguments.data, regions=REGIONS)
    model = create_model(
        "rvsepp", bert=arguments.minilm, feature_dim=data.feature_dim, dim=arguments.dim, freeze_bert=True
    )
    assert isinstance(model, VSE)
    states = {split.name: States.of(model, split, arguments.work) for split in (data.train, data.dev)}
    regions = {split.name: split.features.gather(torch.arange(split.num_images))[0] for split in (data.train, data.dev)}
    loss: AbstractLoss = create_loss(arguments.loss, **LOSSES[arguments.loss])
    groups = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(groups, lr=RATE, weight_decay=1e-4)
    steps = data.train.num_texts // BATCH
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs * steps)
    owners, best, log, start = data.train.image_of_text, 0.0, [], time.perf_counter()
    for epoch in range(arguments.epochs):
        order, total = torch.randperm(data.train.num_texts), 0.0
        for texts in order[: steps * BATCH].split(BATCH):
            found, mask = states["train"].take(texts)
            seen = dropout(regions["train"][owners[texts]], REGION_DROPOUT)
            images = model.encode_images(seen, dropped(torch.ones(BATCH, REGIONS, dtype=torch.bool)))
            read = model.text.head(dropout(found, STATE_DROPOUT), dropped(mask))
            value = loss(model.score(images, read), image_ids=owners[texts])
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            torch.nn.utils.clip_grad_norm_(groups, CLIP)
            optimizer.step()
            schedule.step()
            total += value.item()
        dev = metrics(model, regions["dev"], states["dev"], data.dev.image_of_text)
        log.append({"epoch": epoch + 1, "loss": total / steps, "dev": dev.to_dict()})
        print(f"{epoch + 1:2}  loss {total / steps:.4f}  {time.perf_counter() - start:5.0f} s  dev {dev}", flush=True)
        if dev.rsum > best:
            best = dev.rsum
            model.save(arguments.out)
    (arguments.out.parent / f"{arguments.out.name}.json").write_text(json.dumps(log, indent=1))


def write_ready(model: VSE, projection: Projection, folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the heads of a trained model in float16, its projection, and what is known about it."""
    folder.mkdir(parents=True, exist_ok=True)
    state = model.state_dict()
    heads = {key: value.contiguous() for key, value in head_weights(state).items()}
    halves = {key: value.half() if value.is_floating_point() else value for key, value in heads.items()}
    save_file(halves, folder / HEADS_FILE)
    packed = {"mean": projection.mean, "components": projection.components.half(), "scale": projection.scale}
    save_file({key: value.contiguous() for key, value in packed.items()}, folder / PROJECTION_FILE)
    settings = {key: value for key, value in model.settings.items() if key not in ("bert", "freeze_bert")}
    sample = tower_sample(state).tolist()
    content = {"name": model.name, "settings": settings, "tower_sample": sample, **facts}
    (folder / CONFIG_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for file in (HEADS_FILE, PROJECTION_FILE):  # safetensors makes them readable for their owner alone
        (folder / file).chmod((folder / CONFIG_FILE).stat().st_mode)


def pack(arguments: argparse.Namespace) -> None:
    """The heads of a trained model and the projection of its features, as they are shipped."""
    model = load_model(arguments.run_folder)
    assert isinstance(model, VSE)
    projection = read_projection(Path(arguments.data) / "projection.npz")
    write_ready(model, projection, arguments.out, {"features": "efficientnet_lite2, grid 3, full"})


@torch.no_grad()
def measure(arguments: argparse.Namespace) -> None:
    """Recalls of the shipped file, and how near features of the pictures themselves come to the stored ones."""
    data = load_data(arguments.data, regions=REGIONS)
    model = load_ready_model(arguments.minilm)
    for split in (data.dev, data.test):
        print(f"{split.name}, {split.num_images} images, stored features: {evaluate(model, split)}", flush=True)
    if arguments.photos is None:
        return
    test = data.test
    paths = [path for name in test.image_names if (path := arguments.photos / name).exists()]
    number = len(paths)
    assert [path.name for path in paths] == list(test.image_names[:number]), "the photos must be the first test images"
    extracted = extract_pictures(paths, load_extractor(), cache=arguments.cache)
    stored = DenseFeatures(test.features.gather(torch.arange(number))[0])
    texts = int((test.image_of_text < number).sum())
    for name, features in (("stored features", stored), ("raw pictures", extracted.features)):
        part = Split("test", features, test.captions[:texts], test.image_of_text[:texts], test.image_names[:number])
        print(f"test, first {number} images, {name}: {evaluate(model, part)}", flush=True)
    fresh, _ = extracted.features.gather(torch.arange(number))
    near = torch.cosine_similarity(fresh, stored.gather(torch.arange(number))[0], dim=2)
    print(f"cosine of features, full form: mean {near.mean():.4f}, least {near.min():.4f}")
    projection = load_ready_projection()
    inner = [(x - projection.mean) @ projection.components for x in (fresh, stored.gather(torch.arange(number))[0])]
    near = torch.cosine_similarity(*inner, dim=2)
    print(f"cosine of features, PCA form:  mean {near.mean():.4f}, least {near.min():.4f}")


def main() -> None:
    """Train, pack or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("measure")
    command.add_argument("--data", required=True)
    command.add_argument("--minilm", default="minilm")
    command.add_argument("--photos", type=Path, help="the pictures of the first test images")
    command.add_argument("--cache", type=Path, help="folder for their features")
    command.set_defaults(run=measure)
    command = commands.add_parser("pack")
    command.add_argument("--data", required=True)
    command.add_argument("--run", type=Path, dest="run_folder", required=True)
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(run=pack)
    command = commands.add_parser("train")
    command.add_argument("--data", required=True)
    command.add_argument("--minilm", default="minilm", help="folder of MiniLM, where its package is not installed")
    command.add_argument("--work", type=Path, required=True, help="folder for the states")
    command.add_argument("--loss", choices=LOSSES, default="tal")
    command.add_argument("--dim", type=int, default=512)
    command.add_argument("--epochs", type=int, default=5)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(run=train)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
