"""Symmetric softmax cross-entropy: van den Oord et al., 2018; Radford et al., CLIP, ICML 2021."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from selhn.base.types import Products, Reduction
from selhn.losses.base import AbstractLoss, Learns
from selhn.losses.checks import Scores, require_number
from selhn.losses.statistics import AnchorStatistics, Constants, PerAnchor
from selhn.losses.table import loss

SHARPEST = 100.0
"""The largest 1 / temperature that CLIP allows."""


class ScaledLoss(Learns, AbstractLoss):
    """A loss on s / temperature, or on s / temperature + bias.

    Args:
        temperature: what scores are divided by. `loss.temperature` is the present value of a learnt one.
        learn: whether the temperature, and the bias of a loss that has one, are parameters. `selhn.train`
            trains them; a loop of your own gives `loss.parameters()` to its optimiser, without weight decay.
        reduction: see `AbstractLoss`.
    """

    _bias: float | None = None
    learnt_bias: nn.Parameter

    def __init__(self, temperature: float = 0.07, learn: bool = False, reduction: Reduction = "mean"):
        super().__init__(margin=0.0, reduction=reduction)
        self._temperature = require_number("temperature", temperature, above=0)
        self.learn = learn
        if learn:
            self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))

    @classmethod
    def paper(cls, **settings: Any) -> "ScaledLoss":
        """The paper's value, which is the default."""
        return cls(**settings)

    @property
    def temperature(self) -> float:
        return _present(self._temperature, 1 / self._scale().item()) if self.learn else self._temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._temperature = require_number("temperature", value, above=0)
        if self.learn:
            self.log_scale.data.fill_(-math.log(value))

    @property
    def bias(self) -> float:
        bias = self._bias or 0.0
        return _present(bias, self.learnt_bias.item()) if self.learn and self._bias is not None else bias

    @property
    def constants(self) -> tuple[float, float]:
        """The temperature and the bias that the scores of the statistics still need: learnt ones are `prepared`."""
        return (1.0, 0.0) if self.learn else (self._temperature, self.bias)

    def prepared(self, scores: Scores | Products, given: Any = None) -> Scores | Products:
        """Scores with learnt settings: times the scale, plus the bias."""
        if not self.learn:
            return scores
        scores = scores.mul(self._scale())
        return scores if self._bias is None else scores.add(self.learnt_bias)

    def logits(self, scores: Float[Tensor, "*K B"]) -> Float[Tensor, "*K B"]:
        """Scores over temperature, plus bias; statistics have learnt ones applied already."""
        return scores if self.learn else scores / self._temperature + self.bias

    def learnt(self) -> list[nn.Parameter]:
        return list(self.parameters())

    def numbers(self) -> dict[str, Tensor]:
        if not self.learn:
            return {}
        bias = {} if self._bias is None else {"bias": self.learnt_bias.detach()}
        return {"temperature": 1 / self._scale().detach(), **bias}

    def _scale(self) -> Float[Tensor, ""]:
        return self.log_scale.clamp(max=math.log(SHARPEST)).exp()


@loss("infonce", "-log(e^(s_p/t) / (e^(s_p/t) + sum_n e^(s_n/t)))", "Radford et al. (CLIP), ICML 2021")
class InfoNCE(ScaledLoss):
    """The cross-entropy of an anchor's softmax over its positive and all of its negatives.

    Equation, for anchor V_i:  -log( e^(s(V_i, T_i) / temperature) / sum_j e^(s(V_i, T_j) / temperature) )

    The mean over the anchors of both directions is CLIP's loss, which learns its temperature.

    Args:
        temperature: what scores are divided by; CLIP's training starts at 0.07.
        learn, reduction: see `ScaledLoss`.

    References:
        van den Oord et al., Representation Learning with Contrastive Predictive Coding, 2018.
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.

    Relations:
        As the temperature goes to 0, `temperature` times it becomes `TripletHN` without a margin. `SigLIP`
        treats every pair independently.

    Example:
        >>> loss = InfoNCE(temperature=0.07)(image_emb @ text_emb.T)
    """

    # What docs/integrations/stuck.md says about it.
    remedy = (
        "check the temperature (1.0 on cosines hardly separates anything; CLIP starts at 0.07), then the learning "
        "rate and its warm-up, and that the pairs belong together: in most runs InfoNCE leaves this value by itself"
    )

    @property
    def needs(self) -> dict[str, Constants]:
        return {"log_sum_exp": self.constants[:1]}

    def anchor_loss(self, anchors: AnchorStatistics) -> PerAnchor:
        return -logsigmoid(self.logits(anchors.positive) - anchors["log_sum_exp"])

    def plateau(self, batch: int) -> float | None:
        """log B: every text is equally likely."""
        return math.log(batch)


def _present(start: float, learnt: float) -> float:
    """The learnt value; before training, the exact setting without float32 rounding."""
    return start if math.isclose(start, learnt, rel_tol=1e-6) else learnt
