"""Statistics of rows as one differentiable operation, for autograd and for `torch.compile`."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.kernels.hopper.sides import can_fuse, constants_of
from selhn.losses.row_gradients import differentiate
from selhn.losses.rows import Asked, Found, Labels, Plan, compute
from selhn.losses.score_blocks import MatrixBlocks, ProductBlocks
from selhn.losses.statistics import STATISTICS


def row_statistics(
    plan: Plan, row_labels: Tensor | None, column_labels: Tensor | None, *factors: Tensor
) -> tuple[Tensor, ...]:
    """The positive scores (R) of rows, then everything that is asked (S, R), of rows or of both sides.

    The factors are a matrix of scores, or two embeddings.
    """
    if torch.compiler.is_compiling():
        found = _operator(*_settings(plan, factors[0].dtype), row_labels, column_labels, *factors)
        return tuple(found[: 1 + len(plan.asked)])
    return RowStatistics.apply(plan, row_labels, column_labels, *factors)


class RowStatistics(torch.autograd.Function):
    """The statistics of rows, whose backward pass computes scores again."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, row_labels: Tensor | None, column_labels: Tensor | None, *factors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.plan, ctx.number = plan, len(factors)
        found = _compute(plan, _labels(row_labels, column_labels), factors)
        ctx.save_for_backward(row_labels, column_labels, *factors, *_flat(found))
        ctx.set_materialize_grads(False)
        return found.positive, *found.values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        row_labels, column_labels, *rest = ctx.saved_tensors
        factors, kept = rest[: ctx.number], rest[ctx.number :]
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            return None, None, None, *_of_definition(ctx.plan, (row_labels, column_labels), factors, grads)
        labels = _labels(row_labels, column_labels)
        return None, None, None, *_differentiate(ctx.plan, labels, factors, _found(ctx.plan, kept), grads)


def _can_fuse(plan: Plan, images: Tensor) -> bool:
    """Whether the kernels for Hopper GPUs serve these embeddings and all that is asked."""
    return constants_of(plan.asked) is not None and can_fuse(images, plan.dtype or images.dtype)


def _labels(rows: Tensor | None, columns: Tensor | None) -> Labels:
    return None if rows is None or columns is None else (rows, columns)


def _flat(found: Found) -> list[Tensor]:
    return [found.positive, *found.values, *found.winners, *found.scores]


def _found(plan: Plan, kept: Sequence[Tensor]) -> Found:
    number = len(plan.asked)
    maxima = sum(STATISTICS[name].reduction == "max" for name, _ in plan.asked)
    values, winners = list(kept[1 : 1 + number]), list(kept[1 + number : 1 + number + maxima])
    return Found(kept[0], values, winners, list(kept[1 + number + maxima :]))


def _compute(plan: Plan, labels: Labels, factors: Sequence[Tensor]) -> Found:
    if len(factors) == 1:
        return compute(plan, MatrixBlocks(factors[0]), labels)
    images, texts = factors
    with torch.autocast(images.device.type, enabled=False):
        if not _can_fuse(plan, images):
            return compute(plan, ProductBlocks(images, texts, plan.dtype), labels)
        from selhn.kernels.hopper import fused_statistics

        positive, values, winners = fused_statistics.compute(plan, labels, images, texts)
        maxima = [
            value for value, (name, _) in zip(values, plan.asked) if STATISTICS[name].reduction == "max"
        ]
        return Found(positive, values, winners, [value.clone() for value in maxima])


def _differentiate(
    plan: Plan, labels: Labels, factors: Sequence[Tensor], found: Found, grads: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    if len(factors) == 1:
        return differentiate(plan, MatrixBlocks(factors[0]), labels, found, grads)
    images, texts = factors
    with torch.autocast(images.device.type, enabled=False):
        if not _can_fuse(plan, images):
            return differentiate(plan, ProductBlocks(images, texts, plan.dtype), labels, found, grads)
        from selhn.kernels.hopper import fused_statistics

        kept = found.positive, found.values, found.winners
        return fused_statistics.differentiate(plan, labels, images, texts, *kept, grads)


def plain_statistics(
    scores: Float[Tensor, "*K R C"],
    asked: Asked,
    labels: tuple[Int[Tensor, " R"] | None, Int[Tensor, " C"] | None],
    first: int = 0,
    *,
    both: bool = True,
) -> tuple[Float[Tensor, "*K R"], list[list[Float[Tensor, "*K R"]]]]:
    """The definition in plain differentiable torch: the positives, and everything that is asked, by side."""
    rows, columns = labels
    if rows is None or columns is None:
        rows = torch.arange(first, first + scores.shape[-2], device=scores.device)
        columns = torch.arange(scores.shape[-1], device=scores.device)
    negatives = scores.masked_fill(rows[:, None] == columns, -torch.inf)
    positive = scores.diagonal(first, dim1=-2, dim2=-1)
    sides = (negatives, negatives.mT) if both else (negatives,)
    return positive, [
        [STATISTICS[name].of_rows(side, positive, constants) for side in sides] for name, constants in asked
    ]


def _of_definition(
    plan: Plan,
    labels: tuple[Tensor | None, Tensor | None],
    factors: Sequence[Tensor],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of the factors, which can be differentiated again: autograd's own, of the definition."""
    wide = [factor.to(torch.promote_types(factor.dtype, torch.float32)) for factor in factors]
    scores = wide[0] if len(wide) == 1 else wide[0] @ wide[1].mT
    positive, sides = plain_statistics(scores, plan.asked, labels, plan.first, both=plan.both)
    again = [positive, *(torch.stack(both) for both in sides)]
    arrived = [(one, grad) for one, grad in zip(again, grads) if grad is not None and one.requires_grad]
    values, weights = zip(*arrived)
    wanted = [factor for factor in factors if factor.requires_grad]
    found = iter(torch.autograd.grad(values, wanted, weights, create_graph=True, allow_unused=True))
    return [next(found) if factor.requires_grad else None for factor in factors]


# From here on: the same as two operators of torch, which only compiled programs call.
SETTINGS = "str names, float[] numbers, int[] counts, bool both, int first, ScalarType dtype"
LABELS = "Tensor? row_labels, Tensor? column_labels"


def _settings(plan: Plan, dtype: torch.dtype) -> tuple[Any, ...]:
    """A plan as an operator of torch takes it."""
    names = ",".join(name for name, _ in plan.asked)
    numbers = [float(number) for _, constants in plan.asked for number in constants]
    counts = [len(constants) for _, constants in plan.asked]
    return names, numbers, counts, plan.both, plan.first, plan.dtype or dtype


def _plan(settings: Sequence[Any]) -> Plan:
    names, numbers, counts, *others = settings
    ends = accumulate(counts)
    constants = [tuple(numbers[end - count : end]) for end, count in zip(ends, counts)]
    return Plan(tuple(zip(filter(None, names.split(",")), constants)), *others)


@torch.library.custom_op(
    "selhn::rows", mutates_args=(), schema=f"({SETTINGS}, {LABELS}, Tensor images, Tensor texts) -> Tensor[]"
)
def _operator(*inputs: Any) -> list[Tensor]:
    """All that is found, flat; for compiled programs, because how many blocks there are depends on the batch."""
    *settings, row_labels, column_labels, images, texts = inputs
    return _flat(_compute(_plan(settings), _labels(row_labels, column_labels), (images, texts)))


@_operator.register_fake
def _shapes(*inputs: Any) -> list[Tensor]:
    *settings, _, _, images, _ = inputs
    plan = _plan(settings)
    wide = torch.promote_types(images.dtype, torch.float32)
    positive = images.new_empty(len(images), dtype=wide)
    sides = [images.new_empty(1 + plan.both, len(images), dtype=wide) for _ in plan.asked]
    maxima = [side for side, (name, _) in zip(sides, plan.asked) if STATISTICS[name].reduction == "max"]
    winners = [torch.empty_like(side, dtype=torch.int64) for side in maxima]
    return [positive, *sides, *winners, *(torch.empty_like(side) for side in maxima)]


@torch.library.custom_op(
    "selhn::rows_backward",
    mutates_args=(),
    schema=f"({SETTINGS}, {LABELS}, Tensor images, Tensor texts, Tensor[] kept, Tensor?[] grads) -> (Tensor, Tensor)",
)
def _backward_operator(*inputs: Any) -> tuple[Tensor, ...]:
    """The gradients of the embeddings."""
    *settings, row_labels, column_labels, images, texts, kept, grads = inputs
    plan, labels = _plan(settings), _labels(row_labels, column_labels)
    return _differentiate(plan, labels, (images, texts), _found(plan, kept), grads)


@_backward_operator.register_fake
def _gradient_shapes(*inputs: Any) -> tuple[Tensor, Tensor]:
    images, texts = inputs[-4:-2]
    return torch.empty_like(images), torch.empty_like(texts)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    *ctx.settings, row_labels, column_labels, images, texts = inputs
    ctx.save_for_backward(row_labels, column_labels, images, texts, *output)


def _derive(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    row_labels, column_labels, images, texts, *kept = ctx.saved_tensors
    arrived = grads[: 1 + len(_plan(ctx.settings).asked)]
    found = _backward_operator(*ctx.settings, row_labels, column_labels, images, texts, kept, arrived)
    nothing: Iterator[Any] = (
        [] if one == [] else None for one in ctx.settings
    )  # torch takes [] for a list of tensors
    return *nothing, None, None, *found


_operator.register_autograd(_derive, setup_context=_keep)
