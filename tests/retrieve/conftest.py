"""Small indices for the tests of search."""

import pytest
import torch
from model_cases import FEATURE_DIM, make_model

from selhn.retrieve import Index, Item


@pytest.fixture(scope="session")
def model():
    return make_model("rvse")


@pytest.fixture
def make_item():
    """An item with random regions, two captions, and metadata from its number."""

    def make(number, name=None, **changes):
        generator = torch.Generator().manual_seed(number)
        regions = torch.rand(1 + number % 3, FEATURE_DIM, generator=generator)
        captions = (f"word{number % 30} word{(number * 7 + 1) % 30}", f"word{number % 11} word3 word{number % 5}")
        content = {
            "regions": regions,
            "captions": captions,
            "metadata": {"year": 2000 + number, "even": number % 2 == 0},
        }
        return Item(name or f"item{number}", **{**content, **changes})

    return make


@pytest.fixture
def index(model, make_item, tmp_path):
    """Twenty items in a folder, in two segments."""
    index = Index.create(model, tmp_path / "photos.index")
    index.add(make_item(number) for number in range(12))
    index.add(make_item(number) for number in range(12, 20))
    return index
