"""Small indices for the tests of search."""

import pytest
from index_cases import make_item
from model_cases import make_model

from selhn.export import towers_of
from selhn.search import Index


@pytest.fixture(scope="session")
def model():
    return make_model("rvse")


@pytest.fixture(name="make_item")
def item_maker():
    return make_item


@pytest.fixture
def index(model, make_item, tmp_path):
    """Twenty items in a folder, in two segments."""
    index = Index.create(towers_of(model), tmp_path / "photos.index")
    index.add(make_item(number) for number in range(12))
    index.add(make_item(number) for number in range(12, 20))
    return index
