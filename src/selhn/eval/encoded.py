"""A model and a split to scores, and to metrics: every image and every text encoded once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selhn.data import Split, TextBlocks, image_blocks
from selhn.eval.metrics import Metrics, recall
from selhn.eval.protocols import folds as fold_metrics
from selhn.layers import Fragments
from selhn.models import AbstractMatcher


def evaluate(model: AbstractMatcher, split: Split, *, folds: int = 1, extended: bool = False) -> Metrics:
    """Recall of a model on a split; with `folds=5`, the mean over five folds of its images (COCO 1K)."""
    if folds < 1:
        raise ValueError(f"folds must be at least 1, got {folds}")
    scores = score_split(model, split, for_ranking=True)
    if folds > 1:
        return Metrics.mean(fold_metrics(scores, split.image_of_text, folds, extended=extended))
    return recall(scores, split.image_of_text, extended=extended)


def score_split(
    model: AbstractMatcher, split: Split, block: int = 512, for_ranking: bool = False
) -> Float[Tensor, "I T"]:
    """The scores of all images against all texts of a split, on the model's device.

    `for_ranking` takes `model.rank_scores`, which do not tie where sigmoids are all 1. Texts of like length are scored
    together, so that a model that looks at every word looks at little padding.
    """
    score = model.rank_scores if for_ranking else model.score
    text_blocks = _text_blocks(model, split, block)
    with in_eval_mode(model):
        images = _encode_images(model, split, block)
        columns = [score(images, model.encode_texts(tokens, mask)) for tokens, mask in text_blocks]
    return torch.cat(columns, 1)[:, text_blocks.inverse]


def encode_split(model: AbstractMatcher, split: Split, block: int = 512) -> tuple[Any, Any]:
    """Every image and every text of a split, encoded once, on the model's device: two tensors, or two `Fragments`."""
    text_blocks = _text_blocks(model, split, block)
    with in_eval_mode(model):
        texts = [model.encode_texts(tokens, mask) for tokens, mask in text_blocks]
        return _encode_images(model, split, block), _join(texts)[text_blocks.inverse]


def _encode_images(model: AbstractMatcher, split: Split, block: int) -> Any:
    device = next(model.parameters()).device
    return _join([model.encode_images(regions, mask) for regions, mask in image_blocks(split, block, device)])


def _text_blocks(model: AbstractMatcher, split: Split, block: int) -> TextBlocks:
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer to read the texts with: set model.tokenizer")
    require_width(model, split)
    return TextBlocks(split, model.tokenizer, block, next(model.parameters()).device)


def _join(encodings: Sequence[Any]) -> Any:
    """Encodings of blocks as one."""
    return Fragments.cat(encodings) if isinstance(encodings[0], Fragments) else torch.cat(tuple(encodings))


def require_width(model: AbstractMatcher, split: Split) -> None:
    """Refuse features of another width than the model was made for."""
    wanted = model.settings.get("feature_dim")
    if wanted is not None and wanted != split.features.width:
        raise ValueError(
            f"the features of {split.name} are {split.features.width} wide and the model was made for {wanted}: "
            "use the features it was trained on, or train a model with feature_dim="
            f"{split.features.width}"
        )


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Without gradients and with the model in eval mode, as it was before afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)
