"""Towers: sentences and pictures to vectors, from a folder that `selhn export towers` wrote, without torch."""

from selhn.towers.base import AbstractTowers, TowerTokenizer
from selhn.towers.opening import open_towers

__all__ = ["AbstractTowers", "TowerTokenizer", "open_towers"]
