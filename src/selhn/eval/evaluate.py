"""A model and a split to scores, and to metrics: every image and every text encoded once."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from selhn.data import Split
from selhn.eval.metrics import Metrics, recall
from selhn.eval.protocols import folds as fold_metrics
from selhn.models import AbstractMatcher


def evaluate(model: AbstractMatcher, split: Split, *, folds: int = 1, extended: bool = False) -> Metrics:
    """Recall of a model on a split; with `folds=5`, the mean over five folds of its images (COCO 1K)."""
    scores = score_split(model, split)
    if folds > 1:
        return Metrics.mean(fold_metrics(scores, split.image_of_text, folds, extended=extended))
    return recall(scores, split.image_of_text, extended=extended)


def score_split(model: AbstractMatcher, split: Split, block: int = 512) -> Float[Tensor, "I T"]:
    """The scores of all images against all texts of a split, on the CPU."""
    images, texts = encode_split(model, split, block)
    scores = torch.empty(split.num_images, split.num_texts)
    with in_eval_mode(model):
        for first in range(0, split.num_images, block):
            scores[first : first + block] = model.score(images[first : first + block], texts).cpu()
    return scores


def encode_split(model: AbstractMatcher, split: Split, block: int = 512) -> tuple[Tensor, Tensor]:
    """Every image and every text of a split, encoded once, on the model's device."""
    device = next(model.parameters()).device
    tokens, token_mask = model.tokenize(list(split.captions))
    # Texts of like length go together, so that little padding is computed.
    order = token_mask.sum(dim=1).argsort(stable=True)
    images, texts = [], []
    with in_eval_mode(model):
        for rows in torch.arange(split.num_images).split(block):
            regions, region_mask = split.features.gather(rows)
            images.append(model.encode_images(regions.to(device), region_mask.to(device)))
        for rows in order.split(block):
            longest = int(token_mask[rows].sum(dim=1).max())
            texts.append(model.encode_texts(tokens[rows, :longest].to(device), token_mask[rows, :longest].to(device)))
    return torch.cat(images), torch.cat(texts)[order.argsort()]


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
