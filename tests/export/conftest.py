"""What tests of exports share."""

from contextlib import contextmanager
from functools import cache

import jaxtyping
import pytest
from model_cases import make_model

from selhn.export import export_towers
from selhn.pictures import load_extractor
from selhn.towers import Towers


@contextmanager
def sizes_as_symbols():
    """An export runs a model with symbols for sizes; the checks of shapes know numbers only."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def exporting():
    with sizes_as_symbols():
        yield


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """By name: a model, the folder of its towers, and these; exported once, which takes long."""

    @cache
    def export(name, extractor=None, **settings):
        model, out = make_model(name, **settings), tmp_path_factory.mktemp("towers") / "out"
        with sizes_as_symbols():
            export_towers(model, out, None if extractor is None else load_extractor(extractor))
        return model, out, Towers.open(out)

    return export
