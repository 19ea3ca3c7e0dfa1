"""Cross-attention models beside a loop over captions, in one run: a whole training step, and scored pairs a second.

    python benchmarks/cross_attention.py                     CPU, B = 32 and 64 x 64: a few minutes
    python benchmarks/cross_attention.py --full              CPU, B = 128 and 256 x 256: a quarter of an hour
    python benchmarks/cross_attention.py --device cuda       one GPU, the full sizes, bfloat16 in the encoders
    python benchmarks/cross_attention.py --device cuda --graph       our step captured as one CUDA graph

The loop is how public programs of SCAN, BFAN and SGRAF score a batch: for each caption, its words without padding are
repeated for every image, and the attended vectors are made. It shares the weights of our model, reads the captions with
a packed bidirectional GRU, and its scores are compared with ours. 36 x 2048 regions, d = 1024, captions of 8 to 23
tokens. A step is encoders, scores, T-HN, backward, clipping, AdamW. Scoring starts from encoded images and texts, in
float32 for both; ours takes 64 texts of like length at a time, as evaluation does. Every row is a process of its own,
because only the peak of a whole process can be read.
"""

import argparse
import copy
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from report import environment, save, table
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, leaky_relu
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from selhn.layers import Fragments, unit
from selhn.losses import TripletHN
from selhn.models import AbstractMatcher, create_model, list_models
from selhn.types import Batch

NAMES = [*list_models("scan_*"), *list_models("bfan_*"), "sgr", "saf"]


class PackedBiGRU(nn.Module):
    """The BiGRU of a model as one packed bidirectional GRU."""

    def __init__(self, rnn: nn.Module):
        super().__init__()
        width, hidden = rnn.ahead.input_size, rnn.ahead.hidden_size
        self.rnn = nn.GRU(width, hidden, batch_first=True, bidirectional=True)
        back = {f"{key}_reverse": value for key, value in rnn.back.state_dict().items()}
        self.rnn.load_state_dict({**rnn.ahead.state_dict(), **back})

    def forward(self, sequences: Tensor, mask: Tensor) -> Tensor:
        """The mean of both directions."""
        packed = pack_padded_sequence(sequences, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=mask.shape[1])
        ahead, back = states.chunk(2, 2)
        return (ahead + back) / 2


def attend(queries: Tensor, contexts: Tensor, smooth: float, focus: str | None = None) -> Tensor:
    """The attended vectors (I, L, d) of query fragments (I, L, d) that look at context fragments (I, K, d)."""
    products = leaky_relu(contexts @ queries.transpose(1, 2), 0.1)
    products = products / (products.square().sum(2, keepdim=True).sqrt() + 1e-8)
    weights = (products.transpose(1, 2).contiguous() * smooth).softmax(2)
    if focus is not None:
        confidence = torch.ones_like(weights) if focus == "equal" else weights.sqrt()
        above = (confidence[:, :, None] * (weights[:, :, :, None] - weights[:, :, None])).sum(3) > 0
        weights = weights * above
        weights = weights / weights.sum(2, keepdim=True)
    return weights @ contexts


class CaptionLoop(nn.Module):
    """A head of ours, gone through caption by caption."""

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, images: Fragments, texts: Fragments) -> Tensor:
        """One column a caption."""
        columns = []
        wholes = [None] * len(texts) if texts.whole is None else texts.whole
        for words, mask, whole in zip(texts.vectors, texts.mask, wholes, strict=True):
            repeated = words[: int(mask.sum())].repeat(len(images), 1, 1)
            columns.append(self.column(images, repeated, whole))
        return torch.stack(columns, 1)

    def column(self, images: Fragments, words: Tensor, whole: Tensor | None) -> Tensor:
        """The scores of one caption with all images."""
        head, regions = self.head, images.vectors
        if hasattr(head, "direction"):
            looking, seen = (words, regions) if head.direction == "t2i" else (regions, words)
            cosines = cosine_similarity(looking, attend(looking, seen, head.smooth), dim=2)
            scale = head.lambda_lse
            return cosines.mean(1) if scale is None else (scale * cosines).exp().sum(1).log() / scale
        if hasattr(head, "focus"):
            of_words = cosine_similarity(words, attend(words, regions, head.smooth, head.focus), dim=2)
            of_regions = cosine_similarity(regions, attend(regions, words, head.smooth, head.focus), dim=2)
            return of_words.mean(1) + of_regions.mean(1)
        local = unit(head.local((unit(attend(words, regions, head.smooth)) - words).square()))
        nodes = torch.cat([unit(head.whole((images.whole - whole).square()))[:, None], local], 1)
        if hasattr(head.reasoning, "steps"):
            for step in head.reasoning.steps:
                edges = (step.query(nodes) @ step.key(nodes).transpose(1, 2)).softmax(2)
                nodes = step.value(edges @ nodes).relu()
            return head.last(nodes[:, 0]).squeeze(1)
        gates = head.reasoning.norm(head.reasoning.attention(nodes).transpose(1, 2)).sigmoid()
        gates = gates / (gates.sum(2, keepdim=True) + 1e-8)
        return head.last(unit((gates @ nodes).squeeze(1))).squeeze(1)


def reference(model: AbstractMatcher) -> AbstractMatcher:
    """The same weights, packed and looped."""
    model = copy.deepcopy(model)
    model.text.words.rnn = PackedBiGRU(model.text.words.rnn)
    model.head = CaptionLoop(model.head)
    return model


def make_batch(pairs: int, device: str) -> Batch:
    """Detector-like features and random captions of 8 to 23 tokens."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 24, (pairs,), generator=generator)
    lengths[0] = 23
    mask = torch.arange(23) < lengths[:, None]
    tokens = torch.randint(4, 10_000, (pairs, 23), generator=generator).masked_fill(~mask, 0)
    regions = torch.rand(pairs, 36, 2048, generator=generator)
    return Batch(regions, torch.ones(pairs, 36, dtype=torch.bool), tokens, mask, torch.arange(pairs)).to(device)


def best_seconds(call: Callable[[], object], repeats: int, device: str) -> float:
    """The best of some repeats; where there are several, after one that warms up."""
    times = []
    warm_up = repeats > 1
    for _ in range(repeats + warm_up):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[warm_up:])


def training_step(model: AbstractMatcher, batch: Batch, device: str, graph: bool) -> Callable[[], object]:
    """A function that makes one step, captured once where that is asked for."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    on_gpu = device == "cuda"
    optimizer = torch.optim.AdamW(parameters, lr=2e-4, fused=on_gpu, capturable=graph)
    loss_fn = TripletHN.official()

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
            scores = model(batch).scores
        optimizer.zero_grad(set_to_none=True)
        loss_fn(scores).backward()
        nn.utils.clip_grad_norm_(parameters, 2.0, foreach=True)
        optimizer.step()

    if not graph:
        return step
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    return captured.replay


def measure(name: str, looped: bool, pairs: int, side: int, device: str, repeats: int, graph: bool) -> dict[str, float]:
    """Seconds of a step and of scoring, the memory a step added at its peak, and the first scores."""
    torch.manual_seed(0)
    model = create_model(name, vocab_size=10_000).to(device)
    model = reference(model) if looped else model
    batch = make_batch(side, device)
    with torch.no_grad():
        model.eval()
        images = model.encode_images(batch.regions, batch.region_mask)
        texts = model.encode_texts(batch.tokens, batch.token_mask)
        scores = model.score(images[:16], texts[:16]).flatten().tolist()
        blocks = [texts] if looped else [trimmed(block) for block in texts[texts.mask.sum(1).argsort()].split(64)]
        scoring = best_seconds(lambda: [model.score(images, block) for block in blocks], repeats, device)
    del images, texts, blocks
    step = training_step(model.train(), make_batch(pairs, device), device, graph and not looped)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak of this process so far is forgotten
        before = resident_peak()
    seconds = best_seconds(step, repeats, device)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resident_peak()
    return {"step": seconds, "scoring": scoring, "mib": (peak - before) / 2**20, "scores": scores}


def trimmed(texts: Fragments) -> Fragments:
    """The texts without the padding that all of them have."""
    longest = int(texts.mask.sum(1).max())
    return Fragments(texts.vectors[:, :longest].contiguous(), texts.mask[:, :longest], texts.whole)


def resident_peak() -> int:
    """The most memory this process has held, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Every model, looped and ours."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--full", action="store_true", help="the full sizes on a CPU too")
    parser.add_argument("--graph", action="store_true", help="capture our training step as a CUDA graph")
    parser.add_argument("--models", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--repeats", type=int, default=None, help="3 on the CPU, 20 on a GPU; the loop gets 1 or 3")
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*json.loads(arguments.one))))
        return
    on_gpu = arguments.device == "cuda"
    pairs, side = (128, 256) if on_gpu or arguments.full else (32, 64)
    rows = []
    for name in arguments.models:
        results = []
        for looped in (True, False):
            repeats = arguments.repeats or ((3 if looped else 20) if on_gpu else (1 if looped else 3))
            one = json.dumps([name, looped, pairs, side, arguments.device, repeats, arguments.graph])
            got = json.loads(subprocess.check_output([sys.executable, __file__, "--one", one]).splitlines()[-1])
            results.append(got)
            loop = results[0]
            apart = max(abs(a - b) for a, b in zip(got["scores"], loop["scores"], strict=True))
            rows.append([
                f"{name}, {'loop over captions' if looped else 'ours'}",
                f"{got['step'] * 1e3:,.1f}", f"{loop['step'] / got['step']:.1f}x",
                f"{side**2 / got['scoring'] / 1e3:,.1f}", f"{loop['scoring'] / got['scoring']:.1f}x",
                f"{got['mib']:,.0f}", f"{apart:.0e}",
            ])  # fmt: skip
            print(" ".join(rows[-1]), flush=True)
    header = [
        "model",
        f"ms/step, B = {pairs}",
        "speed",
        f"kpairs/s, {side} x {side}",
        "speed",
        "step MiB",
        "difference",
    ]
    text = f"# Cross-attention beside a loop over captions, d = 1024\n\n{environment()}\n\n{table(header, rows)}"
    kind = arguments.device + ("-graph" if arguments.graph else "") + ("" if on_gpu or arguments.full else "-small")
    print(f"\n{text}\n\nwritten to {save(f'cross-attention-{kind}', text, arguments.out)}")


if __name__ == "__main__":
    main()
