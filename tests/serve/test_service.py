import pytest
from tiny import small_model

from selhn.base.errors import SelhnError
from selhn.models import create_model
from selhn.pictures import Library
from selhn.search import Index
from selhn.serve.collection import Collection
from selhn.serve.service import Service


def test_nothing_to_serve():
    with pytest.raises(SelhnError, match="there is nothing to serve"):
        Service()


def test_another_model_for_attention(collection):
    service = Service(collection, attention=small_model("scan_t2i_avg", word_dim=8))
    search, attention = service.models()
    assert (search.role, attention.role) == ("search", "attention")
    assert attention.name == "scan_t2i_avg"
    assert search.digest != attention.digest


def test_attention_that_does_not_fit(collection):
    other = create_model("scan_t2i_avg", tokenizer=small_model().tokenizer, feature_dim=9, dim=8, word_dim=8)
    for served in (collection, Collection(Library(Index.create(small_model())))):
        with pytest.raises(SelhnError, match="--attention needs an index of pictures"):
            Service(served, attention=other)


def test_gauges(collection):
    assert Service(collection).gauges()["index_items"][1] == 12
    assert "thumbnail_bytes" not in Service(Collection(Library(Index.create(small_model())))).gauges()
