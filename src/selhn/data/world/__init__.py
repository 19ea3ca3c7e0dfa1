"""The generated world: scenes, captions and region features as pure functions of a seed and a number."""

from selhn.data.world.world_features import WorldFeatures, make_world, world_scene

__all__ = ["WorldFeatures", "make_world", "world_scene"]
