"""Both kinds of index do all that the interface says, with the same arguments."""

import inspect

import pytest

from selhn.search import AnyIndex, Index, MilvusIndex

NAMES = [name for name in vars(AnyIndex) if not name.startswith("_") or name in ("__len__", "__contains__")]


@pytest.mark.parametrize("kind", [Index, MilvusIndex])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_arguments(kind, name):
    if name in ("identity", "model") and not hasattr(kind, name):
        assert f"self.{name}" in inspect.getsource(kind.__init__) or f" self.{name}," in inspect.getsource(
            kind.__init__
        )
        return
    promised, own = getattr(AnyIndex, name), getattr(kind, name)
    assert isinstance(promised, property) == isinstance(own, property)
    if not isinstance(promised, property):
        assert list(inspect.signature(own).parameters) == list(inspect.signature(promised).parameters)


def test_the_names_are_what_a_service_needs():
    assert {"search_many", "get", "records", "add", "update", "delete", "refresh", "identity", "generation"} <= set(
        NAMES
    )
