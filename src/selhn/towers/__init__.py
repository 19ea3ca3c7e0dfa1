"""Towers: sentences and pictures to vectors, from a folder that `selhn export towers` wrote, without torch."""

from selhn.towers.base import AbstractTowers, TowerTokenizer
from selhn.towers.description import Cutoff, Description, ImageSide, Parts, TextSide
from selhn.towers.opening import open_towers, open_towers_named_in_file
from selhn.towers.preparation import Preparation
from selhn.towers.towers import Towers

__all__ = [
    "AbstractTowers",
    "Cutoff",
    "Description",
    "ImageSide",
    "Parts",
    "Preparation",
    "TextSide",
    "TowerTokenizer",
    "Towers",
    "open_towers",
    "open_towers_named_in_file",
]
