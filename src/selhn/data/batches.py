"""Splits to batches: shuffled pairs to train on, and every image and text once to evaluate.

Every random number comes from a generator seeded with (seed, epoch) or (seed, epoch, step), so that training
which is resumed at any step sees exactly the batches it would have seen.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.ranks import Shares
from selhn.base.types import SIDE_INPUTS, Batch
from selhn.data.features import Regions
from selhn.data.splits import Split, refuse_not_finite
from selhn.data.steps import Pairs, PlannedStep, prefetched, seed_for
from selhn.ops import side_by_side
from selhn.ops.words import WordChanges, change_words
from selhn.text import Tokenizer

# Keeps the random streams of order and augmentation independent.
ORDER, AUGMENTATION = 0, 1


@dataclass(frozen=True)
class Augmentation:
    """As in VSE-infinity: share of regions left out, and of words masked, replaced or deleted."""

    drop_regions: float = 0.2
    corrupt_words: float = 0.2

    def __post_init__(self) -> None:
        for name, share in vars(self).items():
            if not 0 <= share <= 1:
                raise SelhnError(f"{name} is {share}: give a share from 0 (off) to 1")


MOST_KEPT = 4
# For every split in use, by tokenizer and device; the tokenizer is kept alive so that its id stays unique.
_ENCODED: WeakKeyDictionary[Split, dict[tuple[int, str], tuple[Tokenizer, "EncodedTexts"]]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True)
class EncodedTexts:
    """All texts of a split as tokens on a device, and on the host how long each is."""

    tokens: Int[Tensor, "T N"]
    mask: Bool[Tensor, "T N"]
    lengths: Int[Tensor, " T"]

    @classmethod
    def of(cls, split: Split, tokenizer: Tokenizer, device: torch.device | str = "cpu") -> "EncodedTexts":
        """Every caption of the split, tokenised once, even if it is evaluated after every epoch."""
        known = _ENCODED.setdefault(split, {})
        key = (id(tokenizer), str(device))
        if key not in known:
            if len(known) == MOST_KEPT:
                known.pop(next(iter(known)))
            tokens, mask = tokenizer.encode(list(split.captions))
            # The position of the last token; a tokenizer may mask tokens in the middle.
            lengths = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)
            known[key] = tokenizer, cls(tokens.to(device, torch.int32), mask.to(device), lengths.cpu())
        return known[key][1]

    def take(
        self, texts: Int[Tensor, " B"], num_tokens: int
    ) -> tuple[Int[Tensor, "B N"], Bool[Tensor, "B N"]]:
        """The first tokens of some texts; their numbers are on the same device as the tokens."""
        tokens = self.tokens[:, :num_tokens].index_select(0, texts)
        return tokens, self.mask[:, :num_tokens].index_select(0, texts)


def _drawn(
    random: Callable[..., Tensor],
    rows: Shaped[Tensor, "b n"],
    shares: Shares | None,
    generator: torch.Generator | None,
) -> Shaped[Tensor, "b n"]:
    """Random numbers in the shape of these rows: those that one process with the whole batch would draw for them."""
    how = {"generator": generator, "device": rows.device}
    if shares is None:
        return random(rows.shape, **how)
    return random((sum(shares.sizes), rows.shape[1]), **how)[shares.rows]


def drop_regions(
    mask: Bool[Tensor, "B M"], share: float, generator: torch.Generator, shares: Shares | None = None
) -> Bool[Tensor, "B M"]:
    """The mask with each region dropped with that probability; every image keeps at least one."""
    draw = _drawn(torch.rand, mask, shares, generator)
    draw = draw.masked_fill(~mask, -1)
    # The region with the highest draw always stays: otherwise it would be dropped last.
    return mask & ((draw >= share) | (draw == draw.amax(1, keepdim=True)))


def corrupt_words(
    tokens: Int[Tensor, "T N"], mask: Bool[Tensor, "T N"], tokenizer: Tokenizer, share: float = 0.2,
    generator: torch.Generator | None = None, shares: Shares | None = None,
) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:  # fmt: skip
    """Change a share of the words as in VSE-infinity: half are masked, a tenth replaced, the rest deleted.

    The pieces of a word change together. Start and end always stay, unlike in the public BiGRU code, so that
    no text is ever empty. Shapes do not change: what follows a deleted word moves left.
    """
    if tokenizer.mask_id is None:
        raise SelhnError(
            "this vocabulary has no <mask>: read it with Vocabulary.from_json(path, add_mask=True)"
        )
    kinds = tokenizer.kinds.on(tokens.device)
    draws = _drawn(torch.rand, tokens, shares, generator)
    chosen = _drawn(partial(torch.randint, len(kinds.ordinary)), tokens, shares, generator)
    ids = kinds.special, kinds.inner, kinds.ordinary, tokenizer.mask_id, tokenizer.pad_id
    changes = WordChanges(*ids, masked=0.5 * share, replaced=0.6 * share, deleted=share)
    return change_words(tokens, mask, draws, chosen, changes)


class Batches:
    """A split as batches of pairs, one pair per caption, in a new order every epoch.

    `steps` does the host's work ahead of time; `assemble` does the rest on the device, with shapes
    that depend only on `num_tokens` and without waiting, so that it can be recorded and replayed.

    Args:
        augmentation: random changes; None for none.
        device: device of the batches. Features on that device are gathered there (`split.features.to(device)`
            moves them); others are copied while the step before is computed.
        dtype: precision of the regions.
        token_step: round the number of tokens up to a multiple of this, for few different shapes.
        side: names of side inputs that batches carry; they are kept on the device.
        shares: how the processes that train together divide a batch: only the pairs of this one are made, identical to
            those in whole batches. None for all.
    """

    def __init__(
        self,
        split: Split,
        tokenizer: Tokenizer,
        batch_size: int = 128,
        *,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        token_step: int = 1,
        dtype: torch.dtype = torch.float32,
        side: Iterable[str] = (),
        shares: Shares | None = None,
    ):
        if not 1 <= batch_size <= split.num_texts:
            raise SelhnError(
                f"batch_size is {batch_size} and {split.name} has {split.num_texts} captions: "
                f"set batch_size={max(1, min(batch_size, split.num_texts))}, or another from 1 to that"
            )
        if seed < 0:
            raise SelhnError(f"seed is {seed}: choose a whole number of at least 0")
        self.split, self.tokenizer = split, tokenizer
        self.batch_size, self.token_step = batch_size, token_step
        self.augmentation, self.seed = augmentation, seed
        self.dtype, self.device, self.shares = dtype, torch.device(device), shares
        self.side = {name: split.side[name].to(self.device) for name in side}
        if "dependencies" in self.side and augmentation is not None and augmentation.corrupt_words:
            raise SelhnError(
                "dependencies refer to words by position, and corrupt_words deletes words: set it to 0"
            )
        self.texts = EncodedTexts.of(split, tokenizer, self.device)
        self.image_of_text = split.image_of_text.cpu()
        store_device = split.features.gather(torch.zeros(1, dtype=torch.int64))[0].device
        self.resident = store_device.type == self.device.type
        """Whether the features are on the device of the batches."""
        self.generator = torch.Generator(self.device)

    def __len__(self) -> int:
        """Batches in an epoch; the last pairs, which do not fill a batch, are left out."""
        return self.split.num_texts // self.batch_size

    def order(self, epoch: int) -> Int[Tensor, " T"]:
        """The captions in the order of an epoch, the same on every machine."""
        generator = torch.Generator().manual_seed(seed_for(self.seed, ORDER, epoch))
        return torch.randperm(self.split.num_texts, generator=generator)

    def steps(self, epoch: int, start: int = 0) -> Iterator[PlannedStep]:
        """The steps of an epoch, from a given step on."""
        steps = self._steps(epoch, start)
        return steps if self.resident else prefetched(steps, self.device)

    def _steps(self, epoch: int, start: int) -> Iterator[PlannedStep]:
        order = self.order(epoch)
        images = self.image_of_text[order]
        order_there, images_there = order.to(self.device), images.to(self.device)
        longest = [int(lengths.max()) for lengths in self.texts.lengths[order].split(self.batch_size)]
        for step in range(start, len(self)):
            whole = range(step * self.batch_size, (step + 1) * self.batch_size)
            own = whole if self.shares is None else whole[self.shares.rows]
            pairs = slice(own.start, own.stop)
            named = Pairs(order_there[pairs], images_there[pairs])
            if not self.resident or self.device.type == "cpu":
                regions, mask = self.split.features.gather(images[pairs], dtype=None)
                refuse_not_finite(self.split, images[pairs], regions)  # on a GPU it would delay every step
                named = named._replace(regions=regions, region_mask=mask)
            yield PlannedStep(
                named, self._num_tokens(longest[step]), seed_for(self.seed, AUGMENTATION, epoch, step)
            )

    def _num_tokens(self, longest: int) -> int:
        return min(self.token_step * -(-longest // self.token_step), self.texts.tokens.shape[1])

    def assemble(self, step: PlannedStep) -> Batch:
        """The batch of a step, augmented with the random numbers of its seed."""
        self.generator.manual_seed(step.seed)
        return self.assemble_seeded(step.pairs, step.num_tokens)

    def assemble_rows(self, texts: Int[Tensor, " B"]) -> Batch:
        """Texts given on the host, with their images, augmented with the random numbers of `generator`."""
        pairs = Pairs(texts.to(self.device), self.image_of_text[texts].to(self.device))
        return self.assemble_seeded(pairs, self._num_tokens(int(self.texts.lengths[texts].max())))

    def assemble_seeded(self, pairs: Pairs, num_tokens: int) -> Batch:
        """`assemble` from a `generator` that is seeded already, as by `Stepper` before every step of training."""
        change = self.augmentation

        def images() -> Regions:
            regions, mask = pairs.regions, pairs.region_mask
            if regions is None or mask is None:
                found = self.split.features.gather(pairs.images, dtype=None)
                regions, mask = (tensor.to(self.device) for tensor in found)
            if change is not None and change.drop_regions:
                mask = drop_regions(mask, change.drop_regions, self.generator, self.shares)
            return regions.to(self.dtype), mask

        def texts() -> tuple[Tensor, Tensor]:
            tokens, mask = self.texts.take(pairs.texts, num_tokens)
            if change is not None and change.corrupt_words:
                how = change.corrupt_words, self.generator, self.shares
                tokens, mask = corrupt_words(tokens, mask, self.tokenizer, *how)
            return tokens, mask

        (regions, region_mask), (tokens, token_mask) = side_by_side(images, texts)
        rows = {"images": pairs.images, "texts": pairs.texts}
        side = {
            name: tensor.index_select(0, rows[SIDE_INPUTS[name].of]) for name, tensor in self.side.items()
        }
        return Batch(regions, region_mask, tokens, token_mask, pairs.images, side)


def image_blocks(
    split: Split, block_size: int = 512, device: torch.device | str = "cpu"
) -> Iterator[Regions]:
    """Every image of a split once, in its order: regions and mask."""
    for rows in torch.arange(split.num_images).split(block_size):
        regions, mask = split.features.gather(rows)
        refuse_not_finite(split, rows, regions)
        yield regions.to(device), mask.to(device)


class TextBlocks:
    """Every text of a split once, shortest first, so that little padding is computed.

    `torch.cat([encode(*block) for block in blocks])[blocks.inverse]` is in the order of the split.
    """

    def __init__(
        self, split: Split, tokenizer: Tokenizer, block_size: int = 512, device: torch.device | str = "cpu"
    ):
        self.texts = EncodedTexts.of(split, tokenizer, device)
        self.block_size = block_size
        self.order = self.texts.lengths.argsort(stable=True)
        self.inverse = self.order.argsort()

    def __len__(self) -> int:
        return -(-len(self.order) // self.block_size)

    def __iter__(self) -> Iterator[tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]]:
        for texts in self.order.split(self.block_size):
            yield self.texts.take(texts.to(self.texts.tokens.device), int(self.texts.lengths[texts].max()))
