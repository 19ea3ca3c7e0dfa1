"""One training step: batch, encoders, loss, backward, clip, update, and the numbers of the log.

    python benchmarks/train_step.py --device cuda
    python benchmarks/train_step.py --device cuda --models rvse --profile

B = 128 pairs, 36 x 2048 regions, d = 1024, captions of 8 to 23 tokens, size augmentation on, SelHN. "plain" is what a
user writes by hand from the papers: packed bidirectional GRUs, pooling weights from a GRU for every sample, AdamW, the
features on the device. The BERT has the sizes of BERT-base and random weights. On the CPU everything is smaller.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from report import environment, save, table
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from selhn.data import Data, DenseFeatures, Split
from selhn.losses import TripletSelHN
from selhn.models import AbstractMatcher, create_model
from selhn.text import Vocabulary
from selhn.training.average import EVERY_STEP_UNTIL, WeightAverage
from selhn.training.capture import recording_stream
from selhn.training.config import TrainConfig
from selhn.training.optim import make_optimizer
from selhn.training.protocols import protocol_of
from selhn.training.step import make_batches, make_stepper, on_device

BERT_BASE = {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
             "intermediate_size": 3072}  # fmt: skip
BERT_TINY = {**BERT_BASE, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 512}  # fmt: skip


def make_data(images: int, regions: int, width: int) -> Data:
    """Features with a large common part, and five random captions of 8 to 23 tokens, start and end included."""
    generator = torch.Generator().manual_seed(0)
    words = [f"w{number}" for number in range(8000)]
    lengths = torch.randint(6, 22, (images * 5,), generator=generator)
    picks = torch.randint(len(words), (int(lengths.sum()),), generator=generator).split(lengths.tolist())
    captions = [" ".join(words[index] for index in pick) for pick in picks]
    features = DenseFeatures((torch.randn(images, regions, width, generator=generator) + 0.5).relu().half())
    image_of_text = torch.arange(images).repeat_interleave(5)
    split = Split("train", features, captions, image_of_text, [str(image) for image in range(images)])
    return Data("random", split, split, split)


def make_model(name: str, data: Data, dim: int, small: bool) -> AbstractMatcher:
    """A model of the table for this data."""
    torch.manual_seed(0)
    settings = {
        "feature_dim": data.feature_dim,
        "dim": dim,
        "tokenizer": Vocabulary.build(data.train.captions, 1),
    }
    if name == "rvsepp":
        settings["bert"] = BERT_TINY if small else BERT_BASE
    return create_model(name, **settings)


class PlainGPO(nn.Module):
    """Generalised pooling as it is usually written: a packed GRU runs over the positions of every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(32, 1, bias=False)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """One vector a set."""
        size = features.shape[1]
        angle = torch.arange(size)[:, None] * torch.exp(torch.arange(0, 32, 2) * (-9.21034 / 32))
        positions = torch.stack([angle.sin(), angle.cos()], 2).flatten(1).to(features.device)
        mask = torch.arange(size, device=features.device) < lengths.to(features.device)[:, None]
        packed = pack_padded_sequence(
            positions.expand(len(features), -1, -1), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=size)[0]
        scores = self.linear((states[..., :32] + states[..., 32:]) / 2).squeeze(2)
        weights = (scores.masked_fill(~mask, -10000) / 0.1).softmax(1)
        ordered = features.masked_fill(~mask[..., None], -10000).sort(dim=1, descending=True).values
        return (ordered.masked_fill(~mask[..., None], 0) * weights[..., None]).sum(1)


class PlainRVSE(nn.Module):
    """RVSE as a user writes it."""

    def __init__(self, vocab_size: int, feature_dim: int, dim: int) -> None:
        super().__init__()
        self.fc = nn.Linear(feature_dim, dim)
        self.first, self.norm, self.second = (
            nn.Linear(dim, dim // 2),
            nn.BatchNorm1d(dim // 2),
            nn.Linear(dim // 2, dim),
        )
        self.embed = nn.Embedding(vocab_size, 300)
        self.rnn = nn.GRU(300, dim, batch_first=True, bidirectional=True)
        self.image_pool, self.text_pool = PlainGPO(), PlainGPO()

    def forward(self, *batch: Tensor) -> Tensor:
        """Cosines of all images with all texts."""
        images, texts = self.encode(*batch)
        return images @ texts.T

    def encode(
        self, regions: Tensor, region_mask: Tensor, tokens: Tensor, token_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Unit vectors."""
        features = self.fc(regions)
        hidden = self.norm(self.first(features).flatten(0, 1)).unflatten(0, features.shape[:2]).relu()
        features = features + self.second(hidden)
        images = self.image_pool(features, region_mask.sum(1))
        lengths = token_mask.sum(1).cpu()
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
        states = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]
        half = states.shape[2] // 2
        texts = self.text_pool((states[..., :half] + states[..., half:]) / 2, lengths)
        return nn.functional.normalize(images, dim=1), nn.functional.normalize(texts, dim=1)


def plain_step(data: Data, dim: int, config: TrainConfig, device: torch.device) -> Callable[[], object]:
    """A step of `PlainRVSE` over the same batches."""
    config = replace(config, precision="float32")  # a user's first version has no autocast
    batches = make_batches(make_model("vse_fc", data, 16, True), data, config, device)
    model = PlainRVSE(batches.tokenizer.size, data.feature_dim, dim).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    steps = endless(batches)

    def step() -> None:
        batch = batches.assemble(next(steps))
        scores = model(batch.regions, batch.region_mask, batch.tokens, batch.token_mask)
        positive = scores.diagonal()
        eye = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
        loss = sum(
            (scores.masked_fill(eye, -1).max(axis).values - positive + 0.2).clamp(min=0).mean()
            for axis in (0, 1)
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()

    return step


def our_step(
    model: AbstractMatcher, data: Data, config: TrainConfig, device: torch.device
) -> Callable[[], object]:
    """A step of the library's own loop, with the average of the weights if there is one."""
    model = model.to(device)
    batches = make_batches(model, data, config, device)
    loss = TripletSelHN()
    average = WeightAverage(model, config.ema) if config.ema else None
    protocol = protocol_of(type(loss), config.distil)(model, loss, data, batches, config, average)
    stepper = make_stepper(protocol, make_optimizer(model, config, device))
    steps, numbers = endless(batches), count(1)

    def step() -> None:
        stepper(next(steps))
        if average is not None:
            average.update(next(numbers))

    return step


def endless(batches):
    """Epoch after epoch."""
    epoch = 0
    while True:
        yield from batches.steps(epoch)
        epoch += 1


def warm_up(
    make: Callable[[], Callable[[], object]], device: torch.device
) -> tuple[Callable[[], object], float]:
    """A step that is past its beginning, recorded or not, and the most memory it added, in MiB."""
    before = 0
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    step = make()
    for _ in range(EVERY_STEP_UNTIL + 1 if device.type == "cuda" else 1):
        step()
    return step, (torch.cuda.max_memory_allocated() - before) / 2**20 if device.type == "cuda" else float(
        "nan"
    )


def measure(steps: Sequence[Callable[[], object]], device: torch.device, repeats: int) -> list[float]:
    """Milliseconds of each, the median of some rounds in which they take turns: clocks drift within a second."""
    rounds: list[list[float]] = []
    for _ in range(7 if device.type == "cuda" else 1):
        rounds.append([])
        for step in steps:
            start = synchronized_clock(device)
            for _ in range(repeats):
                step()
            rounds[-1].append((synchronized_clock(device) - start) / repeats * 1e3)
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def synchronized_clock(device: torch.device) -> float:
    """Seconds, once the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def profile(step: Callable[[], object]) -> str:
    """The kernels of a step, dearest first: microseconds, how often, which."""
    steps = 10
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    kernels = sorted(profiler.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    lines = [
        f"{kernel.self_device_time_total / steps:8.1f} us {kernel.count / steps:6.1f} x  {kernel.key[:110]}"
        for kernel in kernels[:60]
    ]
    total = sum(kernel.self_device_time_total for kernel in kernels) / steps
    count = sum(kernel.count for kernel in kernels) / steps
    return "\n".join([f"{total:.0f} us in {count:.0f} kernels", *lines])


def main() -> None:
    """Every model, plain, as written, and recorded; the ratio is to the first row of the model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", nargs="+", default=["rvse", "rvsepp"])
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--profile", action="store_true", help="print the kernels of the recorded step")
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    device, on_gpu = torch.device(arguments.device), arguments.device == "cuda"
    images, regions, width, dim, batch = (2000, 36, 2048, 1024, 128) if on_gpu else (200, 12, 256, 128, 32)
    config = TrainConfig(batch_size=batch, device=arguments.device, drop_regions=0.2, corrupt_words=0.2)
    data = on_device(make_data(images, regions, width), config, device)
    rows = []
    for name in arguments.models:
        kinds: dict[str, dict[str, Any]] = {"as written": {"capture": "never"}}
        last = {"capture": "always"} if on_gpu else {"capture": "never"}
        if on_gpu:
            kinds["recorded"] = last
        kinds |= {"and ema": {**last, "ema": 0.999}, "and distil": {**last, "ema": 0.999, "distil": 1.0}}
        steps: dict[str, Callable[[], Callable[[], object]]] = {
            kind: lambda settings=settings, name=name: our_step(
                make_model(name, data, dim, not on_gpu), data, replace(config, **settings), device
            )
            for kind, settings in kinds.items()
        }
        if name == "rvse":
            steps = {"plain": lambda: plain_step(data, dim, config, device), **steps}
        with recording_stream(device):
            warm = {kind: warm_up(make, device) for kind, make in steps.items()}
            times = measure(
                [step for step, _ in warm.values()], device, arguments.repeats or (50 if on_gpu else 3)
            )
            if arguments.profile and "recorded" in warm:
                print(profile(warm["recorded"][0]))
        for (kind, (_, peak)), milliseconds in zip(warm.items(), times, strict=True):
            rows.append([name, kind, f"{milliseconds:.2f}", f"{milliseconds / times[0]:.3f}", f"{peak:,.0f}"])
            print(" ".join(rows[-1]), flush=True)
        del warm
    header = ["model", "step", "ms", "ratio", "peak MiB"]
    sizes = f"B = {batch}, {regions} x {width} regions, d = {dim}, captions of 8 to 23 tokens"
    text = f"# Training step: {sizes}\n\n{environment()}\n\n{table(header, rows)}"
    print(f"\n{text}\n\nwritten to {save(f'train-step-{arguments.device}', text, arguments.out)}")


if __name__ == "__main__":
    main()
