"""Measurements of a training step: its scores, embeddings and gradients."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from selhn.base.device import device_of
from selhn.base.types import Products, at_least_float32
from selhn.data import Split
from selhn.eval.encoded import side_rows
from selhn.losses import AnchorStatistics
from selhn.losses.anchors import anchor_statistics
from selhn.models import AbstractMatcher, in_eval_mode

Row = dict[str, float]
Norms: TypeAlias = Mapping[nn.Parameter, Float[Tensor, ""]]
"""The norm of every gradient."""
TINY = 1e-12


@torch.no_grad()
def probe_scores(
    scores: Float[Tensor, "*K B B"] | Products,
    image_ids: Int[Tensor, " B"] | None = None,
    epsilon: float = 0.01,
    anchors: AnchorStatistics | None = None,
) -> dict[str, Float[Tensor, ""]]:
    """How well the positives of a batch are separated from their hardest negatives.

    `delta_s` is equation 10 of the SelHN paper, the mean over anchors that have a negative of |s_n - s_p|; `separated`
    the share of them above `epsilon`, where SelHN mines; `spread` the standard deviation of all scores, which is 0
    when the embeddings have collapsed. `anchors` are the statistics of the scores, if already known.
    """
    if anchors is None:
        wide = scores
        if isinstance(scores, Tensor):
            wide = at_least_float32(scores)
        anchors = anchor_statistics(wide, image_ids, ("hardest",))
    has_negative = (anchors.num_negatives > 0).expand_as(anchors["hardest"])
    count = has_negative.sum().clamp(min=1)
    gap = torch.where(has_negative, (anchors["hardest"] - anchors.positive).abs(), 0)
    return {
        "delta_s": gap.sum() / count,
        "separated": ((gap > epsilon) & has_negative).sum() / count,
        "s_p": anchors.positive.mean(),
        "s_n": torch.where(has_negative, anchors["hardest"], 0).sum() / count,
        "spread": _spread(scores),
    }


def _spread(scores: Float[Tensor, "*K B B"] | Products) -> Float[Tensor, ""]:
    """The standard deviation of all scores.

    Without the matrix: with V = v + V', T = t + T' and means v, t, the variance of V @ T.T is that of V' @ t plus
    that of T' @ v plus the mean of (V' @ T'.T)^2, which is <V'.T @ V', T'.T @ T'> / B^2.
    """
    if not isinstance(scores, Products):
        return at_least_float32(scores).std(correction=0)
    ranks, batch = None if scores.shares is None else scores.shares.ranks, len(scores)

    def mean(sums: Tensor) -> Tensor:
        return (sums if ranks is None else ranks.sum(sums)) / batch

    with torch.autocast(scores.images.device.type, enabled=False):
        both = [at_least_float32(emb) for emb in (scores.images, scores.texts)]
        centre = [mean(emb.sum(0)) for emb in both]
        apart = [emb - middle for emb, middle in zip(both, centre)]
        products = [mean(emb.T @ emb) for emb in apart]
        along = mean((apart[0] @ centre[1]).square().sum() + (apart[1] @ centre[0]).square().sum())
        return (along + (products[0] * products[1]).sum()).sqrt()


@torch.no_grad()
def probe_embeddings(
    images: Float[Tensor, "B d"], texts: Float[Tensor, "B d"], image_ids: Int[Tensor, " B"] | None = None
) -> dict[str, Float[Tensor, ""]]:
    """How the embeddings of a batch are spread, and the gradients that hardest-negative mining gives them.

    For an anchor v with positive t and hardest negative t^, all of unit length, the gradient of its triplet with
    respect to v is t^ - t. `distance` is |t^ - t|; `tangent` the part of it that turns v,
    sqrt(|t^ - t|^2 - delta_s^2); `radial` the part along v, delta_s, which normalising removes. All three are means
    over the anchors of both directions.
    `tangent_n` and `tangent_p` are the same for t^ and t: sqrt(1 - s_n^2) and sqrt(1 - s_p^2).
    Paper: equation 8 has |t^ - t| delta_s for the norm on v, here `paper`; it takes a cosine for a sine.

    `spread_images` is the root mean square distance from the mean embedding, `rank_images` the effective rank of
    the covariance, (sum of eigenvalues)^2 / sum of their squares: both are small when embeddings collapse.
    """
    given = {"images": images, "texts": texts}
    with torch.autocast(
        images.device.type, enabled=False
    ):  # half precision would round collapsed embeddings to one value
        unit = {name: nn.functional.normalize(value.float(), dim=1) for name, value in given.items()}
        numbers = _triplets(unit["images"], unit["texts"], image_ids)
        for name, value in given.items():
            # How far embeddings are from their mean, and in how many directions.
            centred = unit[name] - unit[name].mean(dim=0)
            gram = centred @ centred.T
            trace = gram.trace().clamp(min=0)
            shares = (gram / trace.clamp(min=TINY)).square().sum().clamp(min=TINY)
            numbers[f"spread_{name}"] = (trace / len(gram)).sqrt()
            numbers[f"rank_{name}"] = torch.where(trace > TINY, 1 / shares, 0.0)
            # The measured gradient of the loss at the embeddings: norms of the parts across and along them.
            if (value.is_leaf or value.retains_grad) and value.grad is not None:
                gradient = value.grad.float()
                along = (gradient * unit[name]).sum(dim=1, keepdim=True)
                numbers[f"tangent_{name}"] = (gradient - along * unit[name]).norm()
                numbers[f"radial_{name}"] = along.norm()
    return numbers


def _triplets(
    images: Float[Tensor, "B d"], texts: Float[Tensor, "B d"], image_ids: Int[Tensor, " B"] | None
) -> dict[str, Float[Tensor, ""]]:
    """Means over the anchors of both directions that have a negative."""
    excluded = torch.eye(len(images), dtype=torch.bool, device=images.device)
    if image_ids is not None:
        excluded |= image_ids[:, None] == image_ids
    has_negative = ~excluded.all(dim=1)
    directions = []
    for anchors, others in ((images, texts), (texts, images)):
        scores = anchors @ others.T
        s_n, hardest = scores.masked_fill(excluded, -math.inf).max(dim=1)
        s_p, distance = scores.diagonal(), (others[hardest] - others).norm(dim=1)
        delta_s = (s_n - s_p).abs()
        parts = {
            "distance": distance,
            "tangent": _other_side(distance, delta_s),
            "radial": delta_s,
            "tangent_n": _other_side(torch.ones_like(s_n), s_n),
            "tangent_p": _other_side(torch.ones_like(s_p), s_p),
            "paper": distance * delta_s,
        }
        directions.append({name: torch.where(has_negative, part, 0).sum() for name, part in parts.items()})
    count = 2 * has_negative.sum().clamp(min=1)
    return {name: (directions[0][name] + directions[1][name]) / count for name in directions[0]}


def _other_side(hypotenuse: Float[Tensor, " B"], side: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """The other short side of a right-angled triangle."""
    return (hypotenuse.square() - side.square()).clamp(min=0).sqrt()


@torch.no_grad()
def false_negatives(scores: Float[Tensor, "*K B B"], image_ids: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """Share of anchors whose hardest candidate shows their own image: without `image_ids` a loss mines it."""
    own = torch.eye(len(image_ids), dtype=torch.bool, device=scores.device)
    same = (image_ids[:, None] == image_ids) & ~own
    others = scores.masked_fill(own, -math.inf)
    found = [same.expand_as(one).gather(-1, one.argmax(-1, keepdim=True)) for one in (others, others.mT)]
    return torch.stack(found).float().mean()


@torch.no_grad()
def parameter_norms(parameters: Iterable[nn.Parameter]) -> Norms:
    """The norm of the gradient of every parameter that has one, in one pass over them."""
    grads = {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
    wide = torch.float64 if any(grad.dtype == torch.float64 for grad in grads.values()) else torch.float32
    return dict(zip(grads, torch._foreach_norm(list(grads.values()), dtype=wide))) if grads else {}


@torch.no_grad()
def gradient_norms(
    watched: Mapping[str, nn.Module], norms: Norms | None = None
) -> dict[str, Float[Tensor, ""]]:
    """The gradient norm over all weights of each module, as `grad_NAME`; pass `norms` if already known."""
    if norms is None:
        norms = parameter_norms(parameter for module in watched.values() for parameter in module.parameters())
    return {
        f"grad_{name}": total_norm(
            [norms[parameter] for parameter in module.parameters() if parameter in norms]
        )
        for name, module in watched.items()
    }


def total_norm(norms: Sequence[Float[Tensor, ""]]) -> Float[Tensor, ""]:
    """The norm of a vector from the norms of its parts."""
    return torch.linalg.vector_norm(torch.stack(list(norms))) if norms else torch.zeros(())


def probe_split(model: AbstractMatcher, split: Split, pairs: int = 128) -> Row:
    """Measurements of the first `pairs` images of a split that have texts, each with its first text.

    Nothing is drawn at random and the model does not change, so a run is the same with and without it.
    """
    first = dict(reversed([*zip(split.image_of_text.tolist(), range(split.num_texts))]))
    chosen, device = sorted(first)[:pairs], device_of(model)
    regions, region_mask = (part.to(device) for part in split.features.gather(torch.tensor(chosen)))
    captions = [first[image] for image in chosen]
    tokens, token_mask = model.tokenize([split.captions[text] for text in captions])
    with in_eval_mode(model):
        own = side_rows(model, "images", split, torch.tensor(chosen))
        images = model.encode_images(regions, region_mask, **own)
        own = side_rows(model, "texts", split, torch.tensor(captions))
        texts = model.encode_texts(tokens.to(device), token_mask.to(device), **own)
        numbers = probe_scores(model.score(images, texts))
        if isinstance(images, Tensor) and isinstance(texts, Tensor) and images.ndim == texts.ndim == 2:
            numbers |= probe_embeddings(images, texts)
    return read_numbers(numbers)


def read_numbers(numbers: Mapping[str, Float[Tensor, ""]]) -> Row:
    """Copy numbers from the device, in one transfer."""
    device = next(iter(numbers.values())).device
    values = torch.stack([value.to(device, torch.float32) for value in numbers.values()])
    return dict(zip(numbers, values.tolist()))
