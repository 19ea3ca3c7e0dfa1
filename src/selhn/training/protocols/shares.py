"""Batches whose parts are encoded apart, by several processes or one chunk after the other, and what cannot be."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from selhn.base.errors import SelhnError, warn
from selhn.base.types import Batch
from selhn.models import AbstractMatcher, encode_batch
from selhn.models.matcher import members, trains_on_more
from selhn.ops import Fragments
from selhn.ops.batch_norm import remembering_nothing
from selhn.training.config import TrainConfig


def encode_in_chunks(
    model: AbstractMatcher, batch: Batch, chunk: int, sizes: Sequence[int]
) -> tuple[Any, Any]:
    """The images and texts of a batch, `chunk` pairs at a time, or all at once if it is 0.

    What is between the regions and tokens of a chunk and its embeddings is not kept: the backward pass,
    which starts at the embeddings, encodes each chunk again, with the same random numbers. `sizes` are those of the
    parts of all processes, which make the same number of chunks: a batch norm needs the same chunk of each.
    """
    number = min(-(-max(sizes) // chunk), *sizes, max(sizes)) if chunk else 1
    if number == 1:
        return encode_batch(model, batch)
    found = [
        checkpoint(encode_batch, model, batch.each(partial(_piece, number, at)), use_reentrant=False,
                   context_fn=lambda: (nullcontext(), remembering_nothing(model)))
        for at in range(number)
    ]  # fmt: skip
    images, texts = zip(*found)
    return torch.cat(images), torch.cat(texts)


def _piece(number: int, at: int, rows: Shaped[Tensor, "B *n"]) -> Shaped[Tensor, "b *n"]:
    return rows.tensor_split(number)[at]


def each_tensor(encoded: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """What a model has encoded, vectors or fragments, with every tensor changed."""
    return encoded.each(change) if isinstance(encoded, Fragments) else change(encoded)


def require_shareable_model(model: AbstractMatcher, config: TrainConfig, ranks: int) -> None:
    """Refuse a model that is not the same if the parts of a batch are encoded apart, by processes or as chunks."""
    if ranks == 1 and not config.chunk:
        return
    name = model.name or type(model).__name__
    if trains_on_more(model):
        what = "has two networks" if len(members(model)) > 1 else "trains on more than its scores"
        raise SelhnError(f"{name} {what}, for which a batch must be whole: {instead(ranks)}")
    if not model.images_apart:
        raise SelhnError(f"the scores of {name} depend on the other pairs of a whole batch: {instead(ranks)}")
    if config.chunk and not model.is_embedding:
        raise SelhnError(
            f"chunk={config.chunk} saves the memory of encoders, and {name} needs most of it to "
            "compare regions with words: leave chunk=0, or use an embedding model such as rvse"
        )
    if config.chunk and any(isinstance(part, nn.BatchNorm1d) for part in model.modules()):
        warn(
            f"{name} has batch norms: with chunk={config.chunk} each takes its statistics from a "
            "chunk, and not from the whole batch"
        )


def instead(ranks: int) -> str:
    """What to do if the parts of a batch cannot be apart."""
    return "start it without torchrun" if ranks > 1 else "leave chunk=0"
