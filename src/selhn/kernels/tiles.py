"""The same statistics from two embedding matrices, without the B x B scores: O(B d + tile^2) memory."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import embedding_bag

from selhn.base.errors import SelhnError
from selhn.base.types import Products
from selhn.kernels.statistics import STATISTICS, AnchorStatistics, Terms, label_images
from selhn.kernels.tile_traversal import Embeddings, PerPair, TiledStatistics, arithmetic_of
from selhn.kernels.torch_tiles import HALF
from selhn.ops.gpu import fusable

ALIGNED = 16
"""Fused kernels read embeddings whose width is a multiple of this."""


def tiled_statistics(
    products: Products,
    image_ids: PerPair | None,
    needs: tuple[str, ...],
    terms: Terms,
    also: tuple[str, ...] = (),
) -> AnchorStatistics:
    """Statistics of `image_emb @ text_emb.T`: values, gradients and tie rule of `dense_statistics`.

    `also` names maxima over the unchanged scores of all negatives, to be found in `raw`.

    Half-precision embeddings are multiplied exactly and compared in float32; on NVIDIA GPUs from Hopper on
    that is done by fused Triton kernels, unless a `tile` is given. Wider ones are multiplied as torch is set
    to do.
    """
    if terms.added is not None:
        raise SelhnError(
            "this loss adds a separate margin to every score and needs the matrix: "
            "call it with image_emb @ text_emb.T"
        )
    if also:
        unchanged = terms.scale is None and terms.shift is None and terms.mask_same_image
        extra = tuple(name for name in also if name not in needs) if unchanged else ()
        anchors = tiled_statistics(products, image_ids, needs + extra, terms)
        if unchanged:
            return replace(anchors, raw=anchors)
        raw = replace(products, images=products.images.detach(), texts=products.texts.detach())
        return replace(anchors, raw=tiled_statistics(raw, image_ids, also, Terms()))
    image_emb, text_emb = _scaled(products.images, products.texts, terms)
    tile, shares, batch = products.tile, products.shares, len(products)
    of_tiles = tuple(name for name in needs if name != "positive_mean")
    if tile is None and not (can_fuse(image_emb) and all(STATISTICS[name].fused for name in of_tiles)):
        tile = 8192 if image_emb.is_cuda else 1024
    if tile is None:
        image_emb, text_emb = (arithmetic_of(tile).aligned(emb) for emb in (image_emb, text_emb))
    labels, num_negatives = label_images(image_ids, batch, image_emb.device)
    masked = labels if terms.mask_same_image else label_images(None, batch, image_emb.device)[0]
    multiplied = image_emb.dtype
    if "positive_mean" in needs:
        # Near collapse its gradient and that of the tiles nearly cancel: they are added before rounding.
        wide = torch.promote_types(multiplied, torch.float32)
        image_emb, text_emb = image_emb.to(wide), text_emb.to(wide)
    if torch.compiler.is_compiling() and shares is None:
        from selhn.kernels.traced_tiles import traced_tiles

        positive, *reduced = traced_tiles(of_tiles, terms, tile, multiplied, masked, image_emb, text_emb)
    else:
        given = terms, tile, multiplied, shares, masked, image_emb, text_emb
        positive, *reduced = TiledStatistics.apply(of_tiles, *given)
    values: dict[str, Tensor] = dict(zip(of_tiles, reduced))
    if "positive_mean" in needs:
        if shares is not None:
            image_emb, text_emb = (shares.gathered(emb, same=True) for emb in (image_emb, text_emb))
        values["positive_mean"] = positive_means(image_emb, text_emb, labels, num_negatives)
    return AnchorStatistics(positive.unsqueeze(0), num_negatives, values)


def _scaled(
    image_emb: Embeddings, text_emb: Embeddings, terms: Terms
) -> tuple[Float[Tensor, "B e"], Float[Tensor, "B e"]]:
    """Embeddings whose products are `scale * scores + shift`: the shift is one more column of both."""
    if terms.scale is not None:
        image_emb = image_emb * terms.scale.to(image_emb.dtype)
    if terms.shift is not None:
        column = image_emb.new_zeros(len(image_emb), ALIGNED)
        column[:, 0] = 1
        image_emb = torch.cat([image_emb, column * terms.shift.to(image_emb.dtype)], dim=1)
        text_emb = torch.cat([text_emb, column], dim=1)
    return image_emb, text_emb


def positive_means(
    image_emb: Embeddings, text_emb: Embeddings, labels: PerPair, num_negatives: PerPair
) -> Float[Tensor, "2 B"]:
    """The mean score over all pairs of an anchor's image, from their mean embedding: O(B d), no tiles."""
    in_order, order = labels.long().sort(stable=True)
    # A label is where the pairs of its image begin in this order, and so where their bag of embeddings does.
    # Of the bags that begin there, all but the last are empty.
    last = labels + len(labels) - num_negatives - 1
    # Not index_add_: on CUDA it adds in any order.
    mean_image, mean_text = (
        embedding_bag(order, emb, in_order, mode="mean")[last] for emb in (image_emb, text_emb)
    )
    return torch.stack([(image_emb * mean_text).sum(dim=1), (mean_image * text_emb).sum(dim=1)])


def can_fuse(emb: Float[Tensor, "B d"]) -> bool:
    """Whether the fused kernels serve these embeddings."""
    if not (fusable(emb) and emb.dtype in HALF and torch.version.cuda):
        return False
    # Older GPUs lack the copy engine and the shared memory that the kernels are laid out for.
    return torch.cuda.get_device_capability(emb.device) >= (9, 0)
