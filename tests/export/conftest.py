"""What tests of exports share."""

import jaxtyping
import pytest


@pytest.fixture
def unchecked():
    """Without the checks of shapes, which know numbers only: an export runs a model with symbols for sizes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
