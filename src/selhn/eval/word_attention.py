"""The attention between the words of a text and the regions of an image, for one pair of a split."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from selhn.base.device import device_of
from selhn.base.errors import NotFound, SelhnError
from selhn.base.types import Attention
from selhn.data import Split
from selhn.data.side_inputs import SideInputs
from selhn.eval.encoded import require_width, side_rows
from selhn.models import MODELS, AbstractMatcher, CrossAttention, in_eval_mode
from selhn.models.matcher import all_real, members, taken_side


def pair_attention(model: AbstractMatcher, split: Split, image: int | str, text: str) -> Attention:
    """Attention of a cross-attention model for an image of a split (row or name) and any sentence."""
    require_width(model, split)
    row = image_row(split, image)
    regions, mask = split.features.gather(torch.tensor([row]))
    boxes = None if split.boxes is None else split.boxes[row][mask[0].to(split.boxes.device)]
    return _attention(
        model, regions, mask, text, boxes, side_rows(model, "images", split, torch.tensor([row]))
    )


def region_attention(
    model: AbstractMatcher,
    regions: Float[Tensor, "M F"],
    text: str,
    boxes: Float[Tensor, "M 4"] | None = None,
) -> Attention:
    """Attention of a cross-attention model for the regions of one image and any sentence."""
    side = SideInputs({}, None if boxes is None else boxes[None], 1, 1, "the image")
    return _attention(model, regions[None], all_real(regions[None], None), text, boxes, side)


def _attention(
    model: AbstractMatcher,
    regions: Float[Tensor, "1 M F"],
    region_mask: Bool[Tensor, "1 M"],
    text: str,
    boxes: Float[Tensor, "m 4"] | None,
    side: Mapping[str, Tensor],
) -> Attention:
    if len(members(model)) > 1:
        raise SelhnError(f"{model.name} has two networks with different attention: use one of model.both")
    if not isinstance(model, CrossAttention):
        having = [name for name, entry in MODELS.items() if entry.family == "cross-attention"]
        raise SelhnError(
            f"{model.name or type(model).__name__} makes one vector per image and one per text and has no "
            f"attention between them; models that have: {', '.join(having)}"
        )
    if not text.strip():
        raise SelhnError("the text is empty: write a few words")
    device = device_of(model)
    tokens, mask = model.tokenize([text])
    with in_eval_mode(model):
        own = {name: tensor.to(device) for name, tensor in taken_side(model, side, "images").items()}
        images = model.encode_images(regions.to(device), region_mask.to(device), **own)
        attention = model.attention(images, model.encode_texts(tokens.to(device), mask.to(device)))
    assert model.tokenizer is not None
    ids = tokens[0][mask[0]].cpu()
    return replace(
        attention,
        words=tuple(model.tokenizer.spell(ids.tolist())),
        is_word=tuple((~model.tokenizer.kinds.special[ids]).tolist()),
        boxes=boxes,
    )


def image_row(split: Split, image: int | str) -> int:
    """The row of an image, given its name or number."""
    if isinstance(image, str):
        if image in split.image_names:
            return split.image_names.index(image)
        if not image.isdecimal():
            raise NotFound(
                f"{split.name} has no image {image!r}: give a name such as {split.image_names[0]!r} or a number"
            )
    row = int(image)
    if not 0 <= row < split.num_images:
        raise NotFound(f"{split.name} has no image {row}: count from 0 to {split.num_images - 1}")
    return row
