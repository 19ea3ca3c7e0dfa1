"""Losses of scores divided by a temperature, which may be learnt along with the model: Radford et al., CLIP, 2021."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selhn.base.types import Reduction
from selhn.kernels import Terms
from selhn.losses.base import AbstractLoss, require_number

SHARPEST = 100.0
"""What CLIP lets 1 / temperature become at most."""
ALIGNED = 16
"""Fused kernels read embeddings whose width is a multiple of this."""


class ScaledLoss(AbstractLoss):
    """A loss of s / temperature, or of s / temperature + bias.

    Args:
        temperature: what scores are divided by; where a learnt one starts.
        bias: added to the quotient; None in a loss that has none.
        learn: whether temperature and bias are parameters. `selhn.train` trains them with the model; in a loop of your
            own, hand `loss.parameters()` to the optimiser, without weight decay.
        reduction: see `AbstractLoss`.
    """

    mask_same_image = True
    """Whether other pairs of an anchor's image are left out of its sum."""

    def __init__(self, temperature: float, bias: float | None, learn: bool, reduction: Reduction):
        super().__init__(margin=0.0, reduction=reduction)
        require_number("temperature", temperature, above=0)
        self.temperature, self.learn = temperature, learn
        if bias is not None:
            require_number("bias", bias, signed=True)
            self.bias = bias
        if learn:
            self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        if learn and bias is not None:
            self.learnt_bias = nn.Parameter(torch.tensor(float(bias)))

    @classmethod
    def paper(cls, **settings: Any) -> "ScaledLoss":
        """The paper's value, which is the default."""
        return cls(**settings)

    @property
    def terms(self) -> Terms:
        """Temperature and bias, where they are constants; learnt ones are in the scores already."""
        temperature, bias = (1.0, 0.0) if self.learn else (self.temperature, getattr(self, "bias", 0.0))
        return Terms(temperature=temperature, bias=bias, mask_same_image=self.mask_same_image)

    def learnt(self) -> list[nn.Parameter]:
        """Temperature and bias, where they are learnt."""
        return list(self.parameters())

    def numbers(self) -> dict[str, Tensor]:
        """The temperature as it stands, where it is learnt."""
        return {"temperature": 1 / self._scale().detach()} if self.learn else {}

    def _scale(self) -> Float[Tensor, ""]:
        return self.log_scale.clamp(max=math.log(SHARPEST)).exp()

    def prepare_scores(self, scores: Float[Tensor, "*K B B"], given: Any) -> Float[Tensor, "*K B B"]:
        """Scaled and shifted by what is learnt."""
        return scores * self._scale() + (self.learnt_bias if hasattr(self, "bias") else 0.0) if self.learn else scores

    def prepare_embeddings(
        self, image_emb: Float[Tensor, "B d"], text_emb: Float[Tensor, "B d"]
    ) -> tuple[Float[Tensor, "B e"], Float[Tensor, "B e"]]:
        """The same: a scale goes into the images, a bias is one more column of both."""
        if not self.learn:
            return image_emb, text_emb
        image_emb = image_emb * self._scale().to(image_emb.dtype)
        if hasattr(self, "bias"):
            column = image_emb.new_zeros(len(image_emb), ALIGNED)
            column[:, 0] = 1
            image_emb = torch.cat([image_emb, column * self.learnt_bias.to(image_emb.dtype)], dim=1)
            text_emb = torch.cat([text_emb, column], dim=1)
        return image_emb, text_emb
