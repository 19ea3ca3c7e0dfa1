"""Encode a test split and score all its pairs, beside a plain PyTorch loop over the same data, in one run.

    python benchmarks/scoring.py                  a small split on the CPU
    python benchmarks/scoring.py --device cuda    1,000 images x 5,000 texts, 36 x 2048 regions, d = 1024

"plain" is how public programs go about it: pairs in the order of the files, each image once for each of its captions,
packed GRUs. Ours encodes every image and text once, texts of like length together.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from report import environment, save, table
from train_step import PlainRVSE, make_data, make_model, synchronized_clock

from selhn.data import Data
from selhn.data.batches import EncodedTexts
from selhn.eval import score_split
from selhn.training.config import TrainConfig
from selhn.training.step import on_device


def plain_scores(data: Data, dim: int, device: torch.device) -> Callable[[], object]:
    """Pair by pair, 128 at a time."""
    vocabulary = make_model("vse_fc", data, 16, True).tokenizer
    model = PlainRVSE(vocabulary.size, data.feature_dim, dim).to(device).eval()
    texts = EncodedTexts.of(data.test, vocabulary, device)

    @torch.no_grad()
    def compute() -> object:
        images, sentences = [], []
        for pairs in torch.arange(data.test.num_texts).split(128):
            rows = data.test.image_of_text[pairs]
            regions, mask = data.test.features.gather(rows)
            tokens, token_mask = texts.take(pairs.to(device), int(texts.lengths[pairs].max()))
            encoded = model.encode(regions.to(device), mask.to(device), tokens, token_mask)
            images.append(encoded[0])
            sentences.append(encoded[1])
        return torch.cat(images)[::5] @ torch.cat(sentences).T

    return compute


def our_scores(data: Data, dim: int, device: torch.device) -> Callable[[], object]:
    """`score_split`."""
    model = make_model("rvse", data, dim, False).to(device)
    return lambda: score_split(model, data.test)


def main() -> None:
    """Both, the best of three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    images, regions, width, dim = (
        (1000, 36, 2048, 1024) if arguments.device == "cuda" else (200, 12, 256, 128)
    )
    data = on_device(make_data(images, regions, width), TrainConfig(precision="float32"), device)
    rows, reference = [], 0.0
    for name, make in {"plain": plain_scores, "selhn.eval.score_split": our_scores}.items():
        compute, times = make(data, dim, device), []
        for _ in range(4):
            start = synchronized_clock(device)
            compute()
            times.append(synchronized_clock(device) - start)
        seconds = min(times[1:])
        reference = reference or seconds
        pairs = images * images * 5 / seconds / 1e3
        rows.append([name, f"{seconds * 1e3:,.1f}", f"{reference / seconds:.1f}x", f"{pairs:,.0f}"])
        print(" ".join(rows[-1]), flush=True)
    sizes = f"{images:,} images x {5 * images:,} texts, {regions} x {width} regions, d = {dim}"
    header = ["RVSE, encode and score", "ms", "speed", "thousand pairs/s"]
    text = f"# Scoring a split: {sizes}\n\n{environment()}\n\n{table(header, rows)}"
    print(f"\n{text}\n\nwritten to {save(f'scoring-{arguments.device}', text, arguments.out)}")


if __name__ == "__main__":
    main()
