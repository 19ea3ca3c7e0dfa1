"""Whether the features of the generated world are like real ones: the same statistics of both, side by side.

    python benchmarks/world_statistics.py path/to/f8k_pocket

The pocket folder has int8 codes q of real region features, and `projection.npz` to make them full again:
`relu(mean + (q * scale) @ components')`. The rows "explained by" say how much captions tell about pictures: the share
of the variance of an image's mean feature that a ridge regression from the caption's words explains on unseen images.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from report import environment, table
from torch import Tensor
from torch.nn.functional import normalize

from selhn.data.world import make_world

IMAGES, SAMPLE, HELD_OUT, COMMON_WORDS, BLOCK = 6000, 800, 1000, 1000, 250


def real_features(folder: Path, rows: slice) -> Tensor:
    """Full features (I, M, F) of some training images."""
    codes = np.load(folder / "train_ims.npy", mmap_mode="r")[rows].astype(np.float32)
    with np.load(folder / "projection.npz") as projection:
        mean, components, scale = (
            torch.from_numpy(projection[k].astype(np.float32)) for k in ("mean", "components", "scale")
        )
    return (mean + (torch.from_numpy(codes) * scale) @ components.T).relu()


def effective_rank(variances: Tensor) -> float:
    """Participation ratio: how many equal directions would spread as much."""
    return (variances.sum() ** 2 / variances.square().sum()).item()


def describe(regions: Tensor) -> dict[str, float]:
    """Statistics of region features (I, M, F) that need no captions."""
    width = regions.shape[-1]
    mean = regions.mean(dim=(0, 1))
    centred = regions - mean
    flat = centred.reshape(-1, width)
    total = flat.square().sum(dim=1).mean()
    variances = torch.linalg.eigvalsh(flat.T @ flat / len(flat)).flip(0)
    image_means = centred.mean(dim=1)
    others = torch.eye(regions.shape[1]) == 0
    result = {
        "share of zeros": (regions == 0).float().mean().item(),
        "mean of entries": regions.mean().item(),
        "deviation of entries": regions.std().item(),
        "length of mean / rms distance to it": (mean.norm() / total.sqrt()).item(),
    }
    for what, vectors in {"cosine": regions, "centred cosine": centred}.items():
        units = normalize(vectors, dim=2)
        result[f"{what}, same image"] = (units @ units.mT)[:, others].mean().item()
        result[f"{what}, two images"] = (units @ units.roll(1, dims=0).mT).mean().item()
    return result | {
        "variance between images": (image_means.square().sum(dim=1).mean() / total).item(),
        "variance along first direction": (variances[0] / variances.sum()).item(),
        "mean along first direction": abs(
            normalize(mean, dim=0) @ torch.linalg.eigh(flat.T @ flat).eigenvectors[:, -1]
        ).item(),
        "effective rank": effective_rank(variances),
        "effective rank without the first": effective_rank(variances[1:]),
        "effective rank of image means": effective_rank(torch.linalg.eigvalsh(image_means.T @ image_means)),
    }


def explained_by_captions(image_means: Tensor, captions: Sequence[str], per_image: int) -> float:
    """Held-out R^2 of the ridge regression from words to mean features, at its best strength."""
    lines = [caption.lower().split() for caption in captions]
    common = [word for word, _ in Counter(word for line in lines for word in line).most_common(COMMON_WORDS)]
    number = {word: i for i, word in enumerate(common)}
    words = torch.zeros(len(image_means), len(common))
    each = len(lines) // len(image_means)
    for image in range(len(image_means)):
        named = {
            number[w] for line in lines[image * each : image * each + per_image] for w in line if w in number
        }
        words[image, sorted(named)] = 1
    known = slice(0, len(words) - HELD_OUT)
    words = words - words[known].mean(dim=0)
    targets = image_means - image_means[known].mean(dim=0)
    unseen = slice(len(words) - HELD_OUT, None)
    best = -1.0
    for strength in (3.0, 10.0, 30.0, 100.0, 300.0):
        gram = words[known].T @ words[known] + strength * torch.eye(len(common))
        guess = words[unseen] @ torch.linalg.solve(gram, words[known].T @ targets[known])
        wrong = (targets[unseen] - guess).square().sum() / targets[unseen].square().sum()
        best = max(best, 1 - wrong.item())
    return best


def main() -> None:
    """Measure both, print."""
    parser = argparse.ArgumentParser(description="Statistics of real and of generated region features.")
    parser.add_argument("pocket", type=Path)
    folder = parser.parse_args().pocket
    blocks = [slice(start, start + BLOCK) for start in range(0, IMAGES, BLOCK)]
    real_captions = (folder / "train_caps.txt").read_text().splitlines()
    train = make_world(IMAGES).train
    columns = []
    for captions, features in (
        (real_captions, lambda rows: real_features(folder, rows)),
        (list(train.captions), lambda rows: train.features.gather(torch.arange(rows.start, rows.stop))[0]),
    ):
        means = torch.cat([features(rows).mean(dim=1) for rows in blocks])
        column = describe(features(slice(0, SAMPLE)))
        for per_image in (1, 5):
            column[f"explained by {per_image} caption(s)"] = explained_by_captions(means, captions, per_image)
        column["words per caption"] = float(np.mean([len(caption.split()) for caption in captions]))
        columns.append(column)
    real, world = columns
    print(environment(), end="\n\n")
    print(table(["statistic", "Flickr8k", "world"], [[k, f"{real[k]:.3f}", f"{world[k]:.3f}"] for k in real]))


if __name__ == "__main__":
    main()
