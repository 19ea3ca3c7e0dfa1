"""Items of a small index."""

import torch
from model_cases import FEATURE_DIM

from selhn.search import Item


def make_item(number, name=None, **changes):
    """An item with random regions, two captions, and metadata from its number."""
    generator = torch.Generator().manual_seed(number)
    regions = torch.rand(1 + number % 3, FEATURE_DIM, generator=generator)
    captions = (f"word{number % 30} word{(number * 7 + 1) % 30}", f"word{number % 11} word3 word{number % 5}")
    content = {
        "regions": regions,
        "captions": captions,
        "metadata": {"year": 2000 + number, "even": number % 2 == 0},
    }
    return Item(name or f"item{number}", **{**content, **changes})
