"""Cross-attention models beside a loop over captions, in one run: a whole training step, and scored pairs per second.

    python benchmarks/cross_attention.py                     CPU, B = 64 and 128 x 128: five minutes on two quiet cores
    python benchmarks/cross_attention.py --full              CPU, B = 128 and 256 x 256: twenty minutes
    python benchmarks/cross_attention.py --threads 1         the same in CPU time, for a machine that others use too
    python benchmarks/cross_attention.py --device cuda       one GPU, the full sizes, our steps recorded
    python benchmarks/cross_attention.py --profile --models sgr      and where our time goes
    python benchmarks/cross_attention.py --scoring 32 64     scoring alone, of 32 images and 64 texts

The rows of a model:

    loop      how public programs score a batch: for each caption, its words without padding are repeated for every
              image, and the attended vectors are made; captions are read by a packed bidirectional GRU. CAMP's program
              takes five images and all captions at a time, padded to 50 words. A loop shares the weights of our model,
              and its scores are compared with ours. That of NAAF does not search for the threshold in training.
    one pass  ours.
    two pass  ours with two_pass=true, where a loss of hardest negatives allows it.

36 x 2048 regions, d = 1024, captions of 8 to 23 tokens, no augmentation. A step is the library's own for all three:
batch, encoders (bfloat16 on a GPU), scores, T-HN, backward, clipping, AdamW and the numbers of the log. Scoring starts
from encoded images and texts in float32; ours takes 512 texts of like length at a time, as evaluation does. On a CPU
every row is a process of its own, because only the peak of a whole process can be read: that of the steps, less what
was there before.
"""

import argparse
import copy
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from report import environment, save, table
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, leaky_relu, pad
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from train_step import endless, make_data
from train_step import profile as profile_kernels

from selhn.losses import TripletHN
from selhn.models import AbstractMatcher, create_model, list_models
from selhn.models.camp import MessagePassing
from selhn.models.cmcan import ConfidentReasoning
from selhn.models.gsmn import GraphMatching
from selhn.models.imram import RecurrentAttention
from selhn.models.matcher import taken_side
from selhn.models.naaf import NegativeAwareAttention
from selhn.models.scan import StackedAttention
from selhn.ops import Fragments, Pairing, unit
from selhn.text import Vocabulary
from selhn.training.capture import recording_stream
from selhn.training.config import TrainConfig
from selhn.training.optim import make_optimizer
from selhn.training.protocols import Protocol
from selhn.training.step import make_batches, make_stepper, on_device

NAMES = [
    *list_models("scan_*"),
    *list_models("bfan_*"),
    "sgr",
    "saf",
    *list_models("imram*"),
    *list_models("camp*"),
    "naaf",
    *list_models("gsmn_*"),
    "cmcan",
]
IMAGES_OF_CAMP = 5
KINDS = ["loop", "one pass", "two pass"]


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

    def forward(self, pairing: Pairing) -> Tensor:
        """One column per caption."""
        images, texts = pairing.contexts, pairing.queries
        if isinstance(self.head, MessagePassing):
            parts = images.split(IMAGES_OF_CAMP)
            return torch.cat([self.expanded(part.vectors, texts) for part in parts])
        columns = []
        for text in texts.split(1):
            own = text.trimmed()
            columns.append(self.column(images, own.vectors.repeat(len(images), 1, 1), own))
        return torch.stack(columns, 1)

    def expanded(self, regions: Tensor, texts: Fragments) -> Tensor:
        """CAMP: all pairs of some images, with the messages of every pair."""
        head, missing = self.head, self.head.padded_length - texts.mask.shape[1]
        words, mask = pad(texts.vectors, (0, 0, 0, missing)), pad(texts.mask, (0, missing))
        shape = (len(regions), len(words), -1, -1)
        regions, words = regions[:, None].expand(shape), words[None].expand(shape)
        real = mask[None, :, None]
        of_regions = self.messages(head.to_regions, words, regions, real, None)
        of_words = self.messages(head.to_words, regions, words, None, real)
        if not head.gated:
            return (unit(of_regions.mean(2)) * unit(of_words.mean(2))).sum(2)
        sides = []
        for layers, own, got, real in (
            (head.to_regions, regions, of_regions, None),
            (head.to_words, words, of_words, mask[None, :, :, None]),
        ):
            message = unit(got)
            gate = (own * message).sum(3, keepdim=True).sigmoid()
            both = layers.fuse(torch.cat([own, message], 3) * gate).relu() + own
            logits = layers.summary(both)
            logits = logits if real is None else logits.masked_fill(~real, -1e9)
            sides.append(unit((logits.softmax(2).transpose(2, 3) @ both).mean(2)))
        return head.out(torch.cat(sides, 2)).squeeze(2)

    def messages(
        self,
        layers: nn.Module,
        senders: Tensor,
        receivers: Tensor,
        sent: Tensor | None,
        received: Tensor | None,
    ) -> Tensor:
        """Messages of all pairs, after they have looked at each other."""

        def look(query: Tensor, key: Tensor, value: Tensor, real: Tensor | None) -> Tensor:
            logits = query @ key.transpose(2, 3) * value.shape[3] ** -0.5
            return (logits if real is None else logits.masked_fill(~real, -1e9)).softmax(3) @ value

        # Each item is projected once, before pairs are made of them.
        once = (slice(None), slice(0, 1)) if sent is not None else (slice(0, 1),)
        other = (slice(0, 1),) if sent is not None else (slice(None), slice(0, 1))
        query, key = layers.query(receivers[once]), layers.key(senders[other])
        first = look(query.expand_as(receivers), key.expand_as(senders), senders, sent)
        return look(layers.own_query(first), layers.own_key(first), first, received)

    def remembering(self, regions: Tensor, words: Tensor) -> Tensor:
        """IMRAM: one caption, whose queries remember; the last memory is made and not read."""
        head, scores = self.head, []
        for direction, memory in head.memories.items():
            looking, seen = (words, regions) if direction == "t2i" else (regions, words)
            query = looking
            for _ in range(head.steps):
                found = attend(query, seen, memory.smooth)
                scores.append(cosine_similarity(looking, found, dim=2).mean(1))
                both = torch.cat([query, found], 2)
                gate = memory.gate(both).sigmoid()
                query = gate * query + (1 - gate) * memory.output(both).tanh()
        return sum(scores[1:], start=scores[0])

    def negative(self, regions: Tensor, words: Tensor) -> Tensor:
        """NAAF in evaluation: one caption."""
        head, products = self.head, words @ regions.transpose(1, 2)
        over = products - head.thresholds.now(False).to(products.dtype)
        best = over.amax(2, keepdim=True)
        alike = (
            (head.intra_lambda * words[:1] @ words[:1].transpose(1, 2)).softmax(2).repeat(len(regions), 1, 1)
        )
        lacks = (best * (alike @ best < 0)).squeeze(2)
        weights = (over.masked_fill(over <= 0, -1e9) * head.smooth).exp()
        seen = (weights / (weights.sum(2, keepdim=True) + 1e-8)) @ regions
        features = (words * seen).sum(2) / seen.norm(dim=2).clamp(min=1e-8)
        activated = leaky_relu(products, 0.1)
        activated = activated / (activated.square().sum(1, keepdim=True).sqrt() + 1e-8)
        return (lacks + features + (products * (activated * head.smooth).softmax(2)).sum(2)).mean(1)

    def structured(self, match: nn.Module, looking: Tensor, seen: Tensor, edges: Tensor) -> Tensor:
        """GSMN: one side of a caption, with the matching vectors of all neighbours of each node."""
        blocks, places = (self.head.blocks, -1), looking.shape[1]
        found = attend(looking, seen, self.head.smooth)
        matching = cosine_similarity(looking.unflatten(2, blocks), found.unflatten(2, blocks), dim=3)
        of_neighbours = matching[:, None].repeat(1, places, 1, 1).flatten(0, 1)
        heard = (
            edges.repeat(len(looking) // len(edges), 1, 1, 1).flatten(0, 1).transpose(1, 2) @ of_neighbours
        )
        kernels = heard.expand(-1, len(match.convolutions), -1).unbind(1)
        hidden = torch.cat([layer(own) for layer, own in zip(match.convolutions, kernels, strict=True)], 1)
        return match.out_2(match.out_1(hidden).tanh()).view(len(looking), places).mean(1)

    def confident(self, images: Fragments, words: Tensor, whole: Tensor) -> Tensor:
        """CMCAN: one caption."""
        head, regions = self.head, images.vectors

        def compared(layer: nn.Module, one: Tensor, other: Tensor) -> Tensor:
            return unit(layer((one - other).square()).relu())

        both = compared(head.whole, images.whole, whole)
        around = compared(head.around, images.edges[..., 0] @ regions, whole)
        confidence = head.norm(head.confidence(around * both[:, None]).squeeze(2)).sigmoid()[..., None]
        sides = [
            (head.textual, compared(head.by_word, unit(attend(words, regions, head.smooth)), words)),
            (
                head.visual,
                confidence * compared(head.by_region, unit(attend(regions, words, head.smooth)), regions),
            ),
        ]
        ends = [self.reasoned(steps, torch.cat([both[:, None], nodes], 1)) for steps, nodes in sides]
        return head.last(torch.cat(ends, 1)).squeeze(1)

    def reasoned(self, reasoning: nn.Module, nodes: Tensor) -> Tensor:
        """SGR: one caption's nodes, of which the first comes out."""
        for step in reasoning.steps:
            edges = (step.query(nodes) @ step.key(nodes).transpose(1, 2)).softmax(2)
            nodes = step.value(edges @ nodes).relu()
        return nodes[:, 0]

    def column(self, images: Fragments, words: Tensor, text: Fragments) -> Tensor:
        """The scores of one caption with all images."""
        head, regions = self.head, images.vectors
        if isinstance(head, GraphMatching):
            visual = self.structured(head.visual, regions, words, images.edges)
            return visual + self.structured(head.textual, words, regions, text.edges)
        if isinstance(head, ConfidentReasoning):
            return self.confident(images, words, text.whole)
        if isinstance(head, RecurrentAttention):
            return self.remembering(regions, words)
        if isinstance(head, NegativeAwareAttention):
            return self.negative(regions, words)
        if isinstance(head, StackedAttention):
            parts = []
            for direction in head.directions:
                looking, seen = (words, regions) if direction == "t2i" else (regions, words)
                cosines = cosine_similarity(looking, attend(looking, seen, head.smooth, head.focus), dim=2)
                scale = head.lambda_lse
                parts.append(
                    cosines.mean(1) if scale is None else (scale * cosines).exp().sum(1).log() / scale
                )
            return sum(parts[1:], start=parts[0])
        local = unit(head.local((unit(attend(words, regions, head.smooth)) - words).square()))
        nodes = torch.cat([unit(head.whole((images.whole - text.whole).square()))[:, None], local], 1)
        if hasattr(head.reasoning, "steps"):
            return head.last(self.reasoned(head.reasoning, nodes)).squeeze(1)
        gates = head.reasoning.norm(head.reasoning.attention(nodes).transpose(1, 2)).sigmoid()
        gates = gates / (gates.sum(2, keepdim=True) + 1e-8)
        return head.last(unit((gates @ nodes).squeeze(1))).squeeze(1)


def reference(model: AbstractMatcher) -> AbstractMatcher:
    """The same weights, packed and looped."""
    model = copy.deepcopy(model)
    model.text.words.rnn = PackedBiGRU(model.text.words.rnn)
    model.head = CaptionLoop(model.head)
    return model


def best_seconds(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    """The best of some repeats, of the clock, or of the CPU where one thread shares it with others."""
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = clock()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(clock() - start)
    return min(times)


def score_pairs_of(
    model: AbstractMatcher, looped: bool, regions: Tensor, texts: list[str], side: dict[str, Tensor]
) -> tuple[Callable, list]:
    """A function that scores all images against all texts, and the first scores."""
    tokens, mask = (part.to(regions.device) for part in model.tokenize(texts))
    images = model.encode_images(
        regions, **{name: value[: len(regions)].to(tokens.device) for name, value in side.items()}
    )
    encoded: Fragments = model.encode_texts(tokens, mask)
    blocks = [encoded]
    if not looped:
        blocks = [block.trimmed() for block in encoded[encoded.mask.sum(1).argsort()].split(512)]
    first = model.score(images[:16], encoded[:16]).flatten().tolist()
    return lambda: [model.score(images, block) for block in blocks], first


def measure(
    name: str,
    kind: str,
    pairs: int | None,
    sides: list[int],
    kind_of_device: str,
    repeats: int,
    threads: int,
    profile: bool,
) -> dict[str, float | list[float]]:
    """Seconds of a step and of scoring, the memory a step added at its peak, and the first scores.

    Without `pairs`, scoring alone.
    """
    torch.set_num_threads(threads)
    device, looped = torch.device(kind_of_device), kind == "loop"
    config = TrainConfig(batch_size=pairs or sides[0], device=kind_of_device, drop_regions=0.0, corrupt_words=0.0,
                         two_pass=kind == "two pass", capture="never" if looped else "auto")  # fmt: skip
    plain = make_data(max(pairs or 0, *sides), 36, 2048)
    corners = (
        torch.rand(plain.train.num_images, 36, 2, 2, generator=torch.Generator().manual_seed(0))
        .sort(2)
        .values
    )
    split = replace(plain.train, boxes=corners.flatten(2))
    plain = replace(plain, train=split, dev=split, test=split)
    torch.manual_seed(0)
    model = create_model(name, tokenizer=Vocabulary.build(plain.train.captions, 1))
    model = (reference(model) if looped else model).to(device).eval()
    with torch.no_grad():
        regions = plain.train.features.store[: sides[0]].float().to(device)
        side = taken_side(model, plain.train.side, "images")
        score, first = score_pairs_of(model, looped, regions, plain.train.captions[: 5 * sides[1] : 5], side)
        scoring = best_seconds(score, repeats, device)
    if pairs is None:
        return {"step": float("nan"), "scoring": scoring, "mib": float("nan"), "scores": first}
    del regions, score
    data = on_device(plain, config, device)
    before = peak_from_now(device)
    with recording_stream(device):
        loss, batches = TripletHN.official(), make_batches(model.train(), data, config, device)
        stepper = make_stepper(
            Protocol(model, loss, data, batches, config), make_optimizer(model, config, device)
        )
        steps = endless(batches)

        def step() -> None:
            stepper(next(steps))

        try:
            for _ in range(0 if device.type == "cpu" else 1 if looped else 12):
                step()
            seconds = best_seconds(step, repeats, device)
        except torch.OutOfMemoryError:  # all pairs of CAMP's program
            seconds = float("nan")
        peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else resident_peak()
        if profile and not looped:
            print(
                f"{name}, {kind}\n{profile_kernels(step) if device.type == 'cuda' else profile_cpu(step)}\n"
            )
    return {"step": seconds, "scoring": scoring, "mib": (peak - before) / 2**20, "scores": first}


def profile_cpu(step: Callable[[], object]) -> str:
    """Where a step spends its time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    return profiler.key_averages().table(
        sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=50
    )


def peak_from_now(device: torch.device) -> int:
    """Forget the peak so far; the memory in use now, in bytes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return resident_peak()


def resident_peak() -> int:
    """The most memory this process has held, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_apart(
    name: str, kind: str, arguments: argparse.Namespace, sizes: tuple[int | None, list[int]]
) -> dict:
    """`measure`, on a CPU in a process of its own; a profile is passed on."""
    repeats = arguments.repeats or ((2 if kind == "loop" else 20) if arguments.device == "cuda" else 2)
    settings = (name, kind, *sizes, arguments.device, repeats, arguments.threads, arguments.profile)
    if arguments.device == "cuda":
        torch.cuda.empty_cache()
        return measure(*settings)
    one = json.dumps(settings)
    *said, got = subprocess.check_output([sys.executable, __file__, "--one", one], text=True).splitlines()
    print("\n".join(said), end="\n" if said else "")
    return json.loads(got)


def main() -> None:
    """Every model, looped and ours."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--full", action="store_true", help="the full sizes on a CPU too")
    parser.add_argument("--models", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--scoring", type=int, nargs=2, help="scoring alone, of so many images and texts")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="with 1, CPU time is measured"
    )
    parser.add_argument("--repeats", type=int, default=None, help="2 on the CPU; 20 on a GPU, 2 for the loop")
    parser.add_argument("--profile", action="store_true", help="print where the time of our steps goes")
    parser.add_argument("--out", type=Path, default=None, help="folder for the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(*json.loads(arguments.one))))
        return
    full = arguments.device == "cuda" or arguments.full
    pairs, sides = sizes = (128, [256, 256]) if full else (64, [128, 128])
    if arguments.scoring:
        pairs, sides = sizes = None, arguments.scoring
    rows = []
    for name in arguments.models:
        for kind in KINDS if pairs is not None and name not in ("saf", "naaf") else KINDS[:2]:
            got = measure_apart(name, kind, arguments, sizes)
            loop = got if kind == "loop" else loop
            apart = max(abs(a - b) for a, b in zip(got["scores"], loop["scores"], strict=True))
            rows.append([
                name, kind, f"{got['step'] * 1e3:,.1f}", f"{loop['step'] / got['step']:.1f}x",
                f"{sides[0] * sides[1] / got['scoring'] / 1e3:,.2f}", f"{loop['scoring'] / got['scoring']:.1f}x",
                f"{got['mib']:,.0f}", f"{apart:.0e}",
            ])  # fmt: skip
            print(" | ".join(rows[-1]), flush=True)
    header = ["model", "row", "ms/step", "speed", "kpairs/s", "speed", "step MiB", "difference"]
    steps = "" if pairs is None else f"steps of B = {pairs} with T-HN, "
    what = f"{steps}scoring of {sides[0]} x {sides[1]}, 36 x 2048 regions, d = 1024, 8 to 23 tokens"
    if arguments.device == "cpu":
        what += f"; {arguments.threads} thread(s), {'CPU time' if arguments.threads == 1 else 'wall time'}"
    if pairs is None:  # without the columns of steps
        header, *rows = ([line[place] for place in (0, 1, 4, 5, 7)] for line in (header, *rows))
    text = (
        f"# Cross-attention beside a loop over captions: {what}\n\n{environment()}\n\n{table(header, rows)}"
    )
    kind = arguments.device + ("-scoring" if pairs is None else "" if full else "-small")
    print(f"\n{text}\n\nwritten to {save(f'cross-attention-{kind}', text, arguments.out)}")


if __name__ == "__main__":
    main()
