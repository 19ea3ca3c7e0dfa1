"""What tests of exports share."""

from functools import cache

import jaxtyping
import pytest
from model_cases import make_model

from selhn.export import export_towers


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """By name: a model, the folder of its towers and what `export_towers` returned; exported once, which takes long."""

    @cache
    def export(name, **settings):
        # An export runs a model with symbols for sizes; the checks of shapes know numbers only.
        jaxtyping.config.update("jaxtyping_disable", True)
        try:
            model, out = make_model(name, **settings), tmp_path_factory.mktemp("towers") / "out"
            return model, out, export_towers(model, out)
        finally:
            jaxtyping.config.update("jaxtyping_disable", False)

    return export
