import importlib
import importlib.util
import warnings

import pytest

from integrations.cases import without_operators

without_operators()


@pytest.fixture
def library():
    """A function that imports a library, or skips the test and says why; the others must be there too."""

    def load(name, *also):
        for one in (*also, name):
            if importlib.util.find_spec(one.partition(".")[0]) is None:
                pytest.skip(f"{one} is not installed: make test-integrations")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of their own imports
            return importlib.import_module(name)

    return load
