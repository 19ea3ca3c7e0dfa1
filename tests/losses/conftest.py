import warnings

import pytest

from selhn.base.errors import SelhnWarning


@pytest.fixture(autouse=True)
def any_numbers():
    """Equations hold for scores and embeddings of any kind; `test_warnings.py` has what a user is warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SelhnWarning)
        yield
