"""pytorch-metric-learning: a loss of selhn as its `BaseMetricLossFunction`, between embeddings and `ref_emb`."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError, needs
from selhn.integrations.pairs import PairLoss
from selhn.losses import AbstractLoss

with needs("pytorch-metric-learning"):
    from pytorch_metric_learning.losses import BaseMetricLossFunction


class MetricPairLoss(BaseMetricLossFunction):
    """`loss_fn(image_emb, labels, ref_emb=text_emb, ref_labels=labels)`: row i of both is a pair.

    Equal labels are not negatives of each other; without labels every other row is one. Regularisers and reducers of
    the library work on it as on its other losses. It mines by itself and takes no miner, and it gathers over the
    processes by itself: do not use `DistributedLossWrapper`.

    Args:
        loss: a loss of selhn or its name.
    """

    def __init__(self, loss: AbstractLoss | str = "selhn", **settings: Any):
        super().__init__(**settings)
        self.pair_loss = PairLoss(loss)

    def compute_loss(
        self,
        embeddings: Float[Tensor, "B d"],
        labels: Int[Tensor, " B"] | None,
        indices_tuple: Any,
        ref_emb: Float[Tensor, "B d"],
        ref_labels: Int[Tensor, " B"] | None,
    ) -> dict[str, Any]:
        """Called by the base class."""
        if ref_emb is embeddings:
            raise SelhnError(
                "this loss compares two sides: pass the texts as ref_emb, row i the text of image i"
            )
        if indices_tuple is not None:
            raise SelhnError("this loss chooses its negatives itself: leave the miner (indices_tuple) out")
        if labels is not ref_labels and (
            labels is None or ref_labels is None or not labels.equal(ref_labels)
        ):
            raise SelhnError(
                "row i of embeddings and of ref_emb is a pair: pass the same labels as ref_labels"
            )
        value = self.pair_loss(embeddings, ref_emb, labels)
        return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}
