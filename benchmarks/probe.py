"""What the probe costs: a training step with it and without it, in turns within one run.

    python benchmarks/probe.py
    python benchmarks/probe.py --device cuda

A step of RVSE as a user writes it (`train_step.py`): batch, encoders, T-HN, backward, clip, AdamW; with the probe as it
comes, which measures every tenth step, and one that measures every step. Blocks of steps of each kind take turns, and
the ratio is the median over rounds of a block's time by that of the block without a probe in the same round: what else
the machine does falls on all alike. B = 128, 36 x 2048 regions, d = 1024 on a GPU; on the CPU everything is smaller.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from report import environment, save, table
from torch import nn
from train_step import PlainRVSE, endless, make_data, make_model, synchronized_clock

from selhn.diagnose import Probe
from selhn.losses import TripletHN
from selhn.training.config import TrainConfig
from selhn.training.step import make_batches, on_device

EVERY = {"no probe": 0, "probe": 10, "probe, every step": 1}


def step_with(every: int, arguments: argparse.Namespace, sizes: tuple[int, ...]) -> Callable[[], None]:
    """A step of a plain loop; `every` 0 is without the probe."""
    device = torch.device(arguments.device)
    images, regions, width, dim, batch = sizes
    config = TrainConfig(batch_size=batch, device=arguments.device, precision="float32")
    data = on_device(make_data(images, regions, width), config, device)
    batches = make_batches(make_model("vse_fc", data, 16, True), data, config, device)
    torch.manual_seed(0)
    model = PlainRVSE(batches.tokenizer.size, data.feature_dim, dim).to(device)
    optimizer, loss_fn, steps = (
        torch.optim.AdamW(model.parameters(), lr=config.lr),
        TripletHN(),
        endless(batches),
    )
    probe = Probe(model, every=every) if every else None

    def step() -> None:
        batch = batches.assemble(next(steps))
        image_emb, text_emb = model.encode(batch.regions, batch.region_mask, batch.tokens, batch.token_mask)
        scores = image_emb @ text_emb.T
        loss = loss_fn(scores, image_ids=batch.image_ids)
        optimizer.zero_grad()
        loss.backward()
        if probe is not None:
            probe(scores, loss=loss, image_ids=batch.image_ids, images=image_emb, texts=text_emb)
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()

    return step


def main() -> None:
    """Take turns, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--block", type=int, default=20, help="steps of one kind in a round; a multiple of ten"
    )
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    arguments = parser.parse_args()
    on_gpu = arguments.device == "cuda"
    sizes = (2000, 36, 2048, 1024, 128) if on_gpu else (200, 12, 256, 128, 64)
    device, kinds = torch.device(arguments.device), list(EVERY)
    steps = {kind: step_with(EVERY[kind], arguments, sizes) for kind in kinds}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for round_ in range(arguments.rounds + 1):
        # The one who begins changes, so that nothing is always after the same.
        for kind in kinds[round_ % 3 :] + kinds[: round_ % 3]:
            start = synchronized_clock(device)
            for _ in range(arguments.block):
                steps[kind]()
            if round_:  # the first warms up
                times[kind].append((synchronized_clock(device) - start) / arguments.block * 1e3)
    rows = []
    for kind in kinds:
        ratios = [own / without for own, without in zip(times[kind], times["no probe"])]
        rows.append([kind, f"{statistics.median(times[kind]):.2f}", f"{statistics.median(ratios):.3f}"])
    images, regions, width, dim, batch = sizes
    text = f"# Cost of the probe: B = {batch}, {regions} x {width} regions, d = {dim}\n\n{environment()}\n\n"
    text += table(["step", "ms", "ratio"], rows)
    print(f"{text}\n\nwritten to {save(f'probe-{arguments.device}', text, arguments.out)}")


if __name__ == "__main__":
    main()
