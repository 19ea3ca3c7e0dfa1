"""A batch scored in two passes: the same step in less time, for losses of hardest negatives.

In two passes all pairs are scored without a gradient, and then again only those that have a gradient. A loss
of hardest negatives has gradients for the positives and for one negative per anchor: B of the B^2 pairs, and
2B for each maximum that it needs. It sees the whole matrix of the first pass, in which these pairs carry the
gradients of the second. Value and gradients are those of one pass. This does not hold for a loss with
gradients for all negatives, nor for a model whose scores depend on other pairs.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import SelhnError
from selhn.base.ranks import Shares
from selhn.base.types import Batch, Match, at_least_float32
from selhn.losses import STATISTICS, AbstractLoss
from selhn.losses.base import as_ours
from selhn.losses.statistics import Needs, only_maxima, with_constants
from selhn.models import AbstractMatcher, encode_batch
from selhn.models.matcher import trains_on_more
from selhn.training.protocols.shares import each_tensor


def require_two_pass(model: AbstractMatcher, loss: Callable[..., Tensor]) -> None:
    """Refuse a model or a loss for which two passes are not the same step."""
    if not model.pairs_apart or trains_on_more(model):
        raise SelhnError(
            "two_pass=true scores some pairs again, apart from the others, and "
            f"{model.name or type(model).__name__} cannot: its scores are cheap, or depend on other pairs "
            "(as with the batch norm of saf); leave two_pass=false"
        )
    ours = as_ours(loss)
    if ours is None:
        raise SelhnError(
            "two_pass=true must know which pairs get a gradient, which a function from outside does not "
            "tell: use a loss of selhn, or leave two_pass=false"
        )
    # A scheduled loss may come to need nothing but maxima; until then its steps are of one pass.
    if ours.phase is None and not ours.mines:
        sums = ", ".join(name for name in ours.needs if not only_maxima((name,)))
        raise SelhnError(
            f"two_pass=true is for losses of hardest negatives, and {type(loss).__name__} has gradients for "
            f"all of them ({sums}): use hn, shn, sct or warmup, or leave two_pass=false"
        )


def match_in_two_passes(
    model: AbstractMatcher,
    batch: Batch,
    loss: AbstractLoss,
    image_ids: Int[Tensor, " B"] | None,
    shares: Shares | None = None,
) -> Match:
    """What `model(batch)` gives, as far as this loss can tell: all scores, and the gradients it needs.

    With several processes, each scores its own images with all texts, in both passes.
    """
    images, texts = encode_batch(model, batch)
    if shares is not None:
        texts = each_tensor(texts, partial(shares.gathered, same=False))
    with torch.no_grad():
        scores = model.score(images, texts)
        scores = at_least_float32(scores)
        whole = scores if shares is None else shares.gather(scores)
        pairs = pulled_pairs(whole, image_ids, loss.needs)
        # A pair that is there twice, such as two that are each other's hardest negatives, must count once.
        counts = pairs.diff(prepend=pairs.new_full((1,), -1)) != 0
        if shares is not None:  # those of the own images, which are together
            pairs = pairs - shares.rows.start * len(whole)
            own = (pairs >= 0) & (pairs < scores.numel())
            pairs, counts = pairs[own], counts[own]
        image, text = pairs // len(whole), pairs % len(whole)
    # Otherwise the weights that autocast rounded above would be used below, where they need a gradient.
    torch.clear_autocast_cache()
    # Once per item, not once per pair that the item is in.
    images, texts = images.with_gram(), texts.with_gram()
    again = model.activation(model.logits(images[image], texts[text], aligned=True))
    # The value stays that of the first pass to the last bit, so that the loss finds the same maxima.
    leads = (again - again.detach()).to(scores.dtype) * counts
    scores = scores.flatten().index_add(0, pairs, leads).view_as(scores)
    if shares is not None:
        scores = shares.gathered(scores, same=True)
    return Match(scores)


def pulled_pairs(
    scores: Float[Tensor, "B B"], image_ids: Int[Tensor, " B"] | None, maxima: Needs
) -> Int[Tensor, " P"]:
    """`image * B + text` of the positives and of all anchors' maxima, in order, some perhaps more than once.

    P = B + 2B len(maxima) whatever the scores are, and nothing waits for the device.
    """
    batch = len(scores)
    here = torch.arange(batch, device=scores.device)
    images = here if image_ids is None else image_ids
    negatives = scores.masked_fill(images[:, None] == images, -torch.inf)
    positive = scores.diagonal()[:, None]
    pairs = [here * batch + here]
    for name, constants in with_constants(maxima).items():
        texts, images_of_texts = (
            STATISTICS[name].terms(rows, positive, constants).max(dim=1).indices
            for rows in (negatives, negatives.mT)
        )
        pairs += [here * batch + texts, images_of_texts * batch + here]
    return torch.cat(pairs).sort().values
