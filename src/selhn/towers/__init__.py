"""Towers: sentences and pictures to vectors, from a folder that `selhn export towers` wrote, without torch."""

from selhn.towers.base import AbstractTowers, TowerTokenizer

__all__ = ["AbstractTowers", "TowerTokenizer"]
