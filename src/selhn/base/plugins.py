"""Packages outside selhn that add models and losses: each names a module in its entry points "selhn.plugins"."""

from functools import cache
from importlib.metadata import entry_points


@cache
def load_plugins() -> None:
    """Import those modules, so that the command line knows what they register."""
    for entry in entry_points(group="selhn.plugins"):
        entry.load()
