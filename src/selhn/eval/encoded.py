"""From a model and a split to scores and metrics: every image and text is encoded once."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.device import device_of
from selhn.base.errors import SelhnError
from selhn.base.names import require_type
from selhn.base.progress import Progress
from selhn.data import Split, TextBlocks, Truth, image_blocks
from selhn.data.splits import require_folds, require_split
from selhn.eval.metrics import Metrics, recall
from selhn.eval.protocols import folds as fold_metrics
from selhn.eval.stored import StoredScores, for_scores, identity_of_scores
from selhn.models import AbstractMatcher, in_eval_mode
from selhn.models.matcher import taken_side
from selhn.ops import Fragments


def evaluate(
    model: AbstractMatcher,
    split: Split,
    *,
    folds: int | None = None,
    extended: bool = False,
    truth: Truth | None = None,
    path: str | Path | None = None,
    byte_budget: int | None = None,
    quiet: bool = True,
) -> Metrics:
    """Recall of a model on a split, as the mean over `folds` of its images.

    By default `folds` is that of the split: five for the test images of COCO (COCO 1K), otherwise one. With
    `truth` (`selhn.data.read_truth`: CxC, ECCV Caption) all images are measured at once, by its true pairs.

    `path`, `byte_budget` and `quiet` are those of `score_split`.
    """
    require_width(model, split)
    folds = folds_of(split, folds)
    scores = score_split(model, split, for_ranking=True, path=path, byte_budget=byte_budget, quiet=quiet)
    return measure_split(scores, split, folds=folds, extended=extended, truth=truth)


def measure_split(
    scores: Float[Tensor, "I T"],
    split: Split,
    *,
    folds: int | None = None,
    extended: bool = False,
    truth: Truth | None = None,
) -> Metrics:
    """Recall of the scores of a split, as `evaluate` measures those of a model."""
    if truth is not None:
        of_images, of_texts = (
            recall(scores, relevance=pairs, extended=extended) for pairs in (truth.of_images, truth.of_texts)
        )
        return Metrics(of_images.i2t, of_texts.t2i)
    folds = folds_of(split, folds)
    if folds > 1:
        return Metrics.mean(fold_metrics(scores, split.image_of_text, folds, extended=extended))
    return recall(scores, split.image_of_text, extended=extended)


def score_split(
    model: AbstractMatcher,
    split: Split,
    block: int = 512,
    for_ranking: bool = False,
    *,
    path: str | Path | None = None,
    byte_budget: int | None = None,
    quiet: bool = True,
) -> Float[Tensor, "I T"]:
    """The scores of all images against all texts of a split, on the model's device.

    Texts of similar length are scored together, so that little padding is computed. Only the encoded images,
    one block of texts and the result are in memory.

    Args:
        block: number of images, or texts, that are encoded at a time.
        for_ranking: use `model.logits`, which do not tie when all sigmoids are 1.
        path: a folder that keeps the result as `scores.npy` for `numpy.load`, written block by block;
            blocks that are already there are not scored again. The result is then the memory-mapped file.
        byte_budget: memory for the pairs scored at a time; None for a gigabyte, on a GPU for a
            quarter of its memory. Only cross-attention needs it.
        quiet: if False, show progress on a terminal.
    """
    blocks = _text_blocks(model, split, block)
    score = model.logits if for_ranking else model.score
    shape = split.num_images, split.num_texts
    result: _InMemory | StoredScores = _InMemory(shape)
    with ExitStack() as held:
        if path is not None:
            kind = "rank_scores" if for_ranking else "scores"
            identity = identity_of_scores(model, split, blocks.texts, kind)
            held.enter_context(for_scores(path))
            result = StoredScores(path, identity, shape, block, blocks.order)
            if result.complete:
                return result.matrix
            blocks.block_size = result.block
        texts = blocks.order.split(blocks.block_size)
        words = [int(blocks.texts.lengths[some].sum()) for some in texts]
        shown = Progress(sum(words), sum(words[: result.done]), quiet=quiet)
        with in_eval_mode(model):
            images = _encode_images(model, split, block, byte_budget)
            for at, encoded in enumerate(text_encodings(model, split, blocks, result.done), result.done):
                result.write(texts[at], score(images, encoded))
                shown.step(f"words against {split.num_images:,} images", words[at])
        shown.clear()
        return result.matrix


class _InMemory:
    """Scores kept in memory only, filled block by block like `StoredScores`."""

    done = 0

    def __init__(self, shape: tuple[int, int]):
        self.shape, self.matrix = shape, torch.empty(0, 0)

    def write(self, texts: Int[Tensor, " t"], columns: Float[Tensor, "I t"]) -> None:
        if not len(self.matrix):
            # A text's column is contiguous: filling scattered places of rows takes three times as long.
            self.matrix = columns.new_empty(self.shape[::-1]).T
        self.matrix.T[texts.to(columns.device)] = columns.T


def encode_split(model: AbstractMatcher, split: Split, block: int = 512) -> tuple[Any, Any]:
    """Every image and text of a split, encoded once on the model's device: two tensors, or two `Fragments`.

    For a split without texts, the second has no rows.
    """
    require_width(model, split)
    if split.num_texts == 0:
        with in_eval_mode(model):
            images = _encode_images(model, split, block)
            return images, images[:0]
    blocks = _text_blocks(model, split, block)
    with in_eval_mode(model):
        texts = _join(text_encodings(model, split, blocks), split.num_texts, blocks.texts.tokens.shape[1])
        return _encode_images(model, split, block), texts[blocks.inverse]


def _encode_images(model: AbstractMatcher, split: Split, block: int, byte_budget: int | None = None) -> Any:
    encodings = image_encodings(model, split, block)
    return _join(encodings, split.num_images, split.features.num_regions, byte_budget)


def image_encodings(model: AbstractMatcher, split: Split, block: int = 512) -> Iterator[Any]:
    """All images encoded, in their order, some at a time."""
    rows = torch.arange(split.num_images).split(block)
    for some, (regions, mask) in zip(rows, image_blocks(split, block, device_of(model)), strict=True):
        yield model.encode_images(regions, mask, **side_rows(model, "images", split, some))


def text_encodings(model: AbstractMatcher, split: Split, blocks: TextBlocks, done: int = 0) -> Iterator[Any]:
    """All texts encoded, in the order of the blocks, of which some may be `done`."""
    every = zip(blocks.order.split(blocks.block_size), blocks, strict=True)
    for some, (tokens, mask) in islice(every, done, None):
        yield model.encode_texts(tokens, mask, **side_rows(model, "texts", split, some))


def side_rows(
    model: AbstractMatcher, of: Literal["images", "texts"], split: Split, rows: Int[Tensor, " R"]
) -> dict[str, Tensor]:
    """The side inputs that a model takes, for some images or texts, on its device."""
    taken = taken_side(model, split.side, of)
    return {name: tensor[rows.to(tensor.device)].to(device_of(model)) for name, tensor in taken.items()}


def _text_blocks(model: AbstractMatcher, split: Split, block: int) -> TextBlocks:
    require_width(model, split)
    if model.tokenizer is None:
        raise SelhnError("the model has no tokenizer to read the texts with: set model.tokenizer")
    return TextBlocks(split, model.tokenizer, block, device_of(model))


def _join(encodings: Iterator[Any], num_items: int, longest: int, byte_budget: int | None = None) -> Any:
    first = next(encodings)
    every = chain([first], encodings)
    if not isinstance(first, Fragments):
        return torch.cat(tuple(every))
    return replace(Fragments.joined(every, num_items, longest), byte_budget=byte_budget)


def folds_of(split: Split, folds: int | None = None) -> int:
    """The number of folds, by default that of the split; checked before anything is scored."""
    require_split(split)
    folds = split.folds if folds is None else folds
    require_folds(split.num_images, folds)
    return folds


def in_folds(split: Split, folds: int) -> str:
    """The note for metrics that are means over folds."""
    return (
        f"the mean over {folds} folds of {split.num_images // folds:,} images; folds=1 measures all at once"
    )


def require_width(model: AbstractMatcher, split: Split) -> None:
    """Refuse anything but a model and a split, features of another width than the model was made for, and a
    split without the side inputs that it needs.
    """
    require_type("model", model, AbstractMatcher, "the model comes first, then the split, such as data.test")
    require_split(split)
    taken_side(model, split.side)
    wanted = model.settings.get("feature_dim")
    if wanted is not None and wanted != split.features.width:
        raise SelhnError(
            f"features of {split.name} are {split.features.width} wide, the model was made for {wanted}: "
            f"use the features it was trained on, or train a model with feature_dim={split.features.width}"
        )
