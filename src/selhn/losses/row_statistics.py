"""Statistics of rows as one differentiable operation, for autograd and for `torch.compile`."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.types import at_least_float32
from selhn.kernels.hopper.sides import Constants, can_fuse, constants_of
from selhn.losses import row_gradients, rows
from selhn.losses.rows import Found, Plan
from selhn.losses.score_blocks import Blocks, MatrixBlocks, ProductBlocks
from selhn.losses.statistics import STATISTICS, Labels, Values, plain_statistics


def row_statistics(plan: Plan, labels: Labels, *factors: Tensor) -> tuple[Float[Tensor, " R"], Values]:
    """The positive scores of rows, and everything that is asked, of rows or of both sides.

    The factors are a matrix of scores, or two embeddings.
    """
    if torch.compiler.is_compiling():
        found = _compiled(*_settings(plan, factors[0].dtype), *labels, *factors)
    else:
        found = RowStatistics.apply(plan, labels, *factors)
    return found[0], dict(zip(plan.asked, found[1:]))


class RowStatistics(torch.autograd.Function):
    """The statistics of rows, whose backward pass computes scores again."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, labels: Labels, *factors: Tensor) -> tuple[Tensor, ...]:
        ctx.plan, ctx.number = plan, len(factors)
        found = _compute(plan, labels, factors)
        ctx.save_for_backward(*labels, *factors, *found.flat)
        ctx.set_materialize_grads(False)
        return found.positive, *found.values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        labels, factors, kept = saved[:2], saved[2 : 2 + ctx.number], saved[2 + ctx.number :]
        if not torch.is_grad_enabled():
            return None, None, *_differentiate(ctx.plan, labels, factors, kept, grads)
        return None, None, *_of_definition(ctx.plan, labels, factors, grads)


def _of_definition(
    plan: Plan, labels: Labels, factors: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> Iterator[Tensor | None]:
    """The gradients by the factors, by autograd of the definition, which can be derived once more."""
    wide = [at_least_float32(factor) for factor in factors]
    scores = wide[0] if len(wide) == 1 else wide[0] @ wide[1].mT
    positive, values = plain_statistics(scores, plan.asked, labels, plan.first, both=plan.both)
    pairs = zip((positive, *values.values()), grads)
    outputs, arrived = zip(*[(one, grad) for one, grad in pairs if grad is not None and one.requires_grad])
    wanted = [factor for factor in factors if factor.requires_grad]
    found = iter(torch.autograd.grad(outputs, wanted, arrived, create_graph=True, allow_unused=True))
    return (next(found) if factor.requires_grad else None for factor in factors)


def _for_kernels(plan: Plan, factors: Sequence[Tensor]) -> Constants | None:
    """Their constants, if the kernels for Hopper GPUs serve these embeddings and all that is asked."""
    can = len(factors) == 2 and can_fuse(factors[0], plan.dtype or factors[0].dtype)
    return constants_of(plan.asked) if can else None


def _compute(plan: Plan, labels: Labels, factors: Sequence[Tensor]) -> Found:
    with torch.autocast(factors[0].device.type, enabled=False):
        if (constants := _for_kernels(plan, factors)) is not None:
            from selhn.kernels.hopper import fused_statistics

            return Found(*fused_statistics.compute(plan, constants, labels, (factors[0], factors[1])))
        return rows.compute(plan, _blocks(plan, factors), labels)


def _differentiate(
    plan: Plan,
    labels: Labels,
    factors: Sequence[Tensor],
    kept: Sequence[Tensor],
    grads: Sequence[Tensor | None],
) -> tuple[Tensor, ...]:
    found = Found.of(plan, kept)
    with torch.autocast(factors[0].device.type, enabled=False):
        given = found.positive, *row_gradients.of_single_scores(plan, found, grads)
        if (constants := _for_kernels(plan, factors)) is not None:
            from selhn.kernels.hopper import fused_statistics

            return fused_statistics.differentiate(plan, constants, labels, (factors[0], factors[1]), *given)
        return row_gradients.differentiate(plan, labels, _blocks(plan, factors), *given)


def _blocks(plan: Plan, factors: Sequence[Tensor]) -> Blocks:
    return MatrixBlocks(*factors) if len(factors) == 1 else ProductBlocks(factors[0], factors[1], plan.dtype)


SETTINGS = "str names, float[] numbers, int[] counts, bool both, int first, ScalarType dtype"
INPUTS = f"{SETTINGS}, Tensor? row_labels, Tensor? column_labels, Tensor images, Tensor texts"


def _settings(plan: Plan, dtype: torch.dtype) -> tuple[Any, ...]:
    """A plan as an operator of torch takes it."""
    numbers = [float(number) for constants in plan.asked.values() for number in constants]
    counts = [len(constants) for constants in plan.asked.values()]
    return ",".join(plan.asked), numbers, counts, plan.both, plan.first, plan.dtype or dtype


def _plan(names: str, numbers: list[float], counts: list[int], *others: Any) -> Plan:
    constants = [tuple(numbers[end - count : end]) for end, count in zip(accumulate(counts), counts)]
    return Plan(dict(zip(filter(None, names.split(",")), constants)), *others)


# Operators for compiled programs, because how many blocks there are depends on the batch.
@torch.library.custom_op("selhn::rows", mutates_args=(), schema=f"({INPUTS}) -> Tensor[]")
def _compiled(*inputs: Any) -> list[Tensor]:
    return _compute(_plan(*inputs[:-4]), inputs[-4:-2], inputs[-2:]).flat


@_compiled.register_fake
def _shapes(*inputs: Any) -> list[Tensor]:
    plan, images = _plan(*inputs[:-4]), inputs[-2]
    positive = images.new_empty(len(images), dtype=torch.promote_types(images.dtype, torch.float32))
    values = [positive.new_empty(1 + plan.both, len(images)) for _ in plan.asked]
    maxima = [one for one, name in zip(values, plan.asked) if STATISTICS[name].reduction == "max"]
    winners = [torch.empty_like(one, dtype=torch.int64) for one in maxima]
    return [positive, *values, *winners, *(torch.empty_like(one) for one in maxima)]


@torch.library.custom_op(
    "selhn::rows_backward", mutates_args=(), schema=f"({INPUTS}, Tensor[] kept, Tensor?[] grads) -> Tensor[]"
)
def _compiled_backward(*inputs: Any) -> list[Tensor]:
    *settings, row_labels, column_labels, images, texts, kept, grads = inputs
    return list(_differentiate(_plan(*settings), (row_labels, column_labels), (images, texts), kept, grads))


@_compiled_backward.register_fake
def _gradient_shapes(*inputs: Any) -> list[Tensor]:
    return [torch.empty_like(one) for one in inputs[-4:-2]]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.settings = inputs[:-4]
    ctx.save_for_backward(*inputs[-4:], *output)


def _derive(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    inputs, kept = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
    found = _compiled_backward(*ctx.settings, *inputs, kept, grads[: 1 + len(_plan(*ctx.settings).asked)])
    # A list that is empty counts as a list of tensors.
    nothing: list[Any] = [[] if setting == [] else None for setting in ctx.settings]
    return *nothing, None, None, *found


_compiled.register_autograd(_derive, setup_context=_keep)
