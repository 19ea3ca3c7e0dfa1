"""Self-distillation: the average of the model's own weights as its teacher (`distil=0.3 ema=0.999`)."""

import torch
from jaxtyping import Float
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.types import Batch, Match
from selhn.data import Pairs
from selhn.training.protocols.base import Protocol


class SelfDistillation(Protocol):
    """An ordinary loss, and beside it the divergence from what the averaged model says of the batch.

    With s the scores of the model, a those of the averaged model (no dropout, running statistics) for the
    same B pairs as the model sees them, t = `distil_temperature`, and softmax over the texts of an image or
    over the images of a text:

        loss + distil * t / 2B  sum over the 2B anchors of  KL( softmax(a / t) || softmax(s / t) )

    The factor t makes the gradient about as large as that of a triplet, whatever t is. It does not reach the
    teacher. There is no state to keep: the averages are checkpointed anyway.

    References:
        Tarvainen and Valpola, Mean Teachers Are Better Role Models, NeurIPS 2017.
        Li et al., Align before Fuse, NeurIPS 2021: matches of images and texts from a momentum model.
    """

    needs_matrix = True

    def __post_init__(self) -> None:
        if self.average is None:
            raise SelhnError(
                "distil learns from the average of the weights, and there is none: set ema=0.999 too"
            )
        if self.config.two_pass:
            raise SelhnError(
                "distil has gradients for all pairs of a batch: leave two_pass=false, or distil=0"
            )
        if not self.config.distil_temperature > 0:
            raise SelhnError("distil_temperature=0 divides scores by 0: give 0.05 or so")

    def match(self, pairs: Pairs, batch: Batch) -> tuple[Match, None]:
        match, _ = super().match(pairs, batch)
        assert self.average is not None
        # Without no_grad, for the kernels of training: none of the teacher's weights takes a gradient.
        teacher = self.scored(self.average.model, batch).scores
        assert isinstance(teacher, Tensor)
        assert isinstance(match.scores, Tensor)
        temperature = self.config.distil_temperature
        distance = divergence(teacher.detach(), match.scores, temperature)
        return Match(
            match.scores, {**match.aux, "distillation": self.config.distil * temperature * distance}
        ), None


def divergence(
    teacher: Float[Tensor, "*L B B"], scores: Float[Tensor, "*K B B"], temperature: float
) -> Float[Tensor, ""]:
    """Mean over the 2B anchors of KL(softmax(teacher / t) || softmax(scores / t)), in at least float32.

    A model that trains on several matrices (CVSE) is taught all of them by the one that it evaluates with.
    """
    wide = torch.promote_types(scores.dtype, torch.float32)
    teacher = teacher if teacher.ndim == scores.ndim else teacher.unsqueeze(-3)
    means = []
    for axis in (-1, -2):
        target = (teacher.to(wide) / temperature).log_softmax(axis)
        log_ratio = target - (scores.to(wide) / temperature).log_softmax(axis)
        means.append((target.exp() * log_ratio).sum(axis).mean())
    return (means[0] + means[1]) / 2
