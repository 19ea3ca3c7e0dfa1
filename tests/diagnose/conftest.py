import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parents[1] / "benchmarks")]


@pytest.fixture(scope="session")
def plain_run():
    """`benchmarks/plain_loop.py`, each kind of run trained once."""
    from plain_loop import plain_run

    return cache(plain_run)
