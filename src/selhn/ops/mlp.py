"""The bottleneck MLP on region features: two FC layers and two batch norms."""

from typing import Literal, get_args

from jaxtyping import Bool, Float
from torch import Tensor, nn

from selhn.base.errors import SelhnError
from selhn.ops.batch_norm import masked_batch_norm

MLPOrder = Literal["fc-bn-relu-fc", "fc-bn-relu-fc-bn", "bn-fc-relu-bn-fc"]
"""In which order the layers of the MLP are applied."""


class MLP(nn.Module):
    """FC(in -> hidden), BN, ReLU, FC(hidden -> out), applied to every region.

    The RVSE paper says two FC and two BN, but not their order. The default is inferred: the code that
    RVSE is built on has two BN and calls only the first. The second is kept idle (it has no gradient) so
    that published weights load strictly. "fc-bn-relu-fc-bn" and "bn-fc-relu-bn-fc" use both.

    `mask_bn` leaves padding out of the batch statistics; published models do not.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dim: int,
        output_dim: int,
        order: MLPOrder = "fc-bn-relu-fc",
        mask_bn: bool = False,
    ):
        super().__init__()
        if order not in get_args(MLPOrder):
            raise SelhnError(
                f"mlp_order must be one of {', '.join(map(repr, get_args(MLPOrder)))}, got {order!r}"
            )
        self.order = order
        self.mask_bn = mask_bn
        norm_dims = (input_dim, hidden_dim) if order == "bn-fc-relu-bn-fc" else (hidden_dim, output_dim)
        self.layers = nn.ModuleList([nn.Linear(input_dim, hidden_dim), nn.Linear(hidden_dim, output_dim)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(dim) for dim in norm_dims])
        if order == "fc-bn-relu-fc":
            self.bns[1].requires_grad_(False)

    def forward(
        self, features: Float[Tensor, "B M in"], mask: Bool[Tensor, "B M"]
    ) -> Float[Tensor, "B M out"]:
        """The MLP of every region; the values at padding have no meaning."""
        first, second = self.layers
        if self.order == "bn-fc-relu-bn-fc":
            hidden = first(self._norm(0, features, mask)).relu()
            return second(self._norm(1, hidden, mask))
        out = second(self._norm(0, first(features), mask).relu())
        return self._norm(1, out, mask) if self.order == "fc-bn-relu-fc-bn" else out

    def _norm(
        self, index: int, features: Float[Tensor, "B M c"], mask: Bool[Tensor, "B M"]
    ) -> Float[Tensor, "B M c"]:
        norm = self.bns[index]
        assert isinstance(norm, nn.BatchNorm1d)
        # Official: padded rows take part in the statistics of a training batch.
        return masked_batch_norm(norm, features, mask if self.mask_bn else None)
