"""Runs `python -m faults` in a process of its own: without the checks of types of the test run, and free to die."""

import os
from pathlib import Path

from programs import run

TESTS = Path(__file__).parents[1]


def run_drill(*words, timeout=300):
    """What a drill prints; it must end well."""
    path = os.pathsep.join(
        [str(TESTS.parent / "src"), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    done = run(
        "-W", "ignore", "-m", "faults", *words, timeout=timeout, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
