"""Towers: sentences and pictures to vectors with numpy and onnxruntime, from a folder that `selhn export towers` wrote."""

from selhn.towers.base import AbstractTowers, TowerTokenizer

__all__ = ["AbstractTowers", "TowerTokenizer"]
