"""A model and a split to scores, and to metrics: every image and every text encoded once."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selhn.data import Split, TextBlocks, image_blocks
from selhn.eval.metrics import Metrics, recall
from selhn.eval.protocols import folds as fold_metrics
from selhn.models import AbstractMatcher


def evaluate(model: AbstractMatcher, split: Split, *, folds: int = 1, extended: bool = False) -> Metrics:
    """Recall of a model on a split; with `folds=5`, the mean over five folds of its images (COCO 1K)."""
    if folds < 1:
        raise ValueError(f"folds must be at least 1, got {folds}")
    scores = score_split(model, split)
    if folds > 1:
        return Metrics.mean(fold_metrics(scores, split.image_of_text, folds, extended=extended))
    return recall(scores, split.image_of_text, extended=extended)


def score_split(model: AbstractMatcher, split: Split, block: int = 512) -> Float[Tensor, "I T"]:
    """The scores of all images against all texts of a split, on the model's device."""
    images, texts = encode_split(model, split, block)
    with in_eval_mode(model):
        return torch.cat([model.score(some, texts) for some in images.split(block)])


def encode_split(model: AbstractMatcher, split: Split, block: int = 512) -> tuple[Tensor, Tensor]:
    """Every image and every text of a split, encoded once, on the model's device."""
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer to read the texts with: set model.tokenizer")
    require_width(model, split)
    device = next(model.parameters()).device
    text_blocks = TextBlocks(split, model.tokenizer, block, device)
    with in_eval_mode(model):
        images = [model.encode_images(regions, mask) for regions, mask in image_blocks(split, block, device)]
        texts = [model.encode_texts(tokens, mask) for tokens, mask in text_blocks]
    return torch.cat(images), torch.cat(texts)[text_blocks.inverse]


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
