"""The tiles as one operator for `torch.compile`, because which tiles are visited depends on values."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from selhn.kernels.statistics import MAXIMA, Terms
from selhn.kernels.tile_traversal import TiledStatistics

SETTINGS = "str needs, float[] terms, int? tile, ScalarType dtype"


class Kept:
    """What the backward pass must know: the part of autograd's context that `TiledStatistics` uses."""

    def __init__(self, **attributes: Any):
        vars(self).update(attributes)

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """A compiled graph decides itself whether a gradient that did not arrive is None or zeros."""

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """The backward pass passes over these by their names."""


def traced_tiles(
    needs: tuple[str, ...], terms: Terms, tile: int | None, dtype: torch.dtype, labels: Tensor, *embs: Tensor
) -> list[Tensor]:
    """What `TiledStatistics.apply` returns, as a node of a graph; embeddings have learnt terms by now."""
    numbers = [
        terms.margin,
        terms.temperature,
        terms.bias,
        float(terms.one_way),
        *terms.distances,
        *terms.polynomial,
    ]
    return _forward(",".join(needs), numbers, tile, dtype, labels, *embs)[: 1 + len(needs)]


@torch.library.custom_op(
    "selhn::tiles",
    mutates_args=(),
    schema=f"({SETTINGS}, Tensor labels, Tensor images, Tensor texts) -> Tensor[]",
)
def _forward(
    needs: str, terms: Sequence[float], tile: int | None, dtype: torch.dtype, labels: Tensor, *embs: Tensor
) -> list[Tensor]:
    """Positive scores and statistics, then of every maximum its winners."""
    kept, names = Kept(), _names(needs)
    found = TiledStatistics.forward(kept, names, _terms(terms), tile, dtype, None, labels, *embs)
    winners = [one for name, one in zip(names, kept.saved_tensors[4:]) if name in MAXIMA]
    return [*found, *winners]


@_forward.register_fake
def _shapes(
    needs: str, terms: Sequence[float], tile: int | None, dtype: torch.dtype, labels: Tensor, *embs: Tensor
) -> list[Tensor]:
    names, batch = _names(needs), len(labels)
    positive = embs[0].new_empty(batch, dtype=torch.promote_types(dtype, torch.float32))
    winners = [positive.new_empty(2, batch, dtype=torch.int64) for name in names if name in MAXIMA]
    return [positive, *(positive.new_empty(2, batch) for _ in names), *winners]


@torch.library.custom_op(
    "selhn::tiles_backward",
    mutates_args=(),
    schema=f"({SETTINGS}, Tensor[] saved, Tensor?[] grads) -> (Tensor, Tensor)",
)
def _backward(
    needs: str, terms: Sequence[float], tile: int | None, dtype: torch.dtype, saved: Any, grads: Any
) -> tuple[Tensor | None, ...]:
    """The gradients of the embeddings."""
    images, texts, *others = saved
    embs = images.to(dtype), texts.to(dtype)
    kept = Kept(needs=_names(needs), terms=_terms(terms), tile=tile, given=images.dtype, shares=None)
    kept.save_for_backward(*embs, *others)
    return TiledStatistics.backward(kept, *grads)[-2:]


@_backward.register_fake
def _gradient_shapes(
    needs: str, terms: Sequence[float], tile: int | None, dtype: torch.dtype, saved: Any, grads: Any
) -> tuple[Tensor | None, ...]:
    return torch.empty_like(saved[0]), torch.empty_like(saved[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    *ctx.settings, labels, images, texts = inputs
    names = _names(ctx.settings[0])
    positive, values, winners = output[0], output[1 : 1 + len(names)], iter(output[1 + len(names) :])
    remembered = [next(winners) if name in MAXIMA else value for name, value in zip(names, values)]
    ctx.save_for_backward(images, texts, labels, positive, *remembered)


def _differentiate(ctx: Any, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    arrived = grads[: 1 + len(_names(ctx.settings[0]))]
    return None, None, None, None, None, *_backward(*ctx.settings, ctx.saved_tensors, arrived)


_forward.register_autograd(_differentiate, setup_context=_keep)


def _names(needs: str) -> tuple[str, ...]:
    return tuple(filter(None, needs.split(",")))


def _terms(numbers: Sequence[float]) -> Terms:
    margin, temperature, bias, one_way, dim, nearest, farthest, *polynomial = numbers
    return Terms(margin, temperature, bias, tuple(polynomial), bool(one_way), (dim, nearest, farthest))
