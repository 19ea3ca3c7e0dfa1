"""The graph reasoning of SGR and CMCAN on a GPU: no query, edge or value is stored.

Diao et al., AAAI 2021. A step over the X nodes of a pair is X <- ReLU(W_v softmax((W X)' X) X), where W is
W_k' W_q. `selhn.models.sgraf` has the equations, and is the version without a GPU.

One kernel makes a step of a few graphs, in the precision of the nodes with sums in float32. Of the last step
only the first node is needed: one kernel reads the nodes once and makes what it sees. The backward pass makes
queries, edges and values again, of the graphs near those that have a gradient.
"""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor

from selhn.ops import differences
from selhn.ops.differences import SIZES_OF_NODES, Linear, LinearWeights
from selhn.ops.gpu import HALVES, fusable

ROWS = 128
"""Nodes of a program: a graph has no more."""


def can_reason(nodes: Float[Tensor, "I T X s"]) -> bool:
    """Whether `reasoned` can be used: half precision on a GPU, and not too many nodes."""
    return (
        nodes.dtype in HALVES
        and fusable(nodes)
        and nodes.numel() > 0
        and nodes.shape[2] <= ROWS
        and nodes.shape[3] in SIZES_OF_NODES
        and differences.has_kernels(nodes.device)
    )


def reasoned(
    nodes: Float[Tensor, "I T X s"],
    mask: Bool[Tensor, "T X"],
    queries: Sequence[LinearWeights],
    values: Sequence[Linear],
) -> Float[Tensor, "I T s"]:
    """What the first node sees in the last step, after a step for each of `values`; that step has none.

    The logits of edges are the products of `queries` with the nodes.
    """
    from selhn.kernels.hopper.reasoning import Reasoned

    weights: list[Tensor] = []
    for query, value in zip(queries, values):
        weights += [*query, value.weight, value.bias]
    return Reasoned.apply(nodes, mask.contiguous(), *weights, *queries[-1])
