"""Pictures to region features: vision models, grids and boxes, a cache, and folders of pictures as data sets."""

from selhn.features.backbones import Backbone, create_backbone
from selhn.features.cache import CachedFeatures, FeatureCache, Storage, default_cache
from selhn.features.extraction import Extracted, PictureReport, extract_pictures
from selhn.features.extractor import Extractor, Form
from selhn.features.folder import import_pictures, picture_split
from selhn.features.regions import grid_boxes, pool_boxes

__all__ = [
    "Backbone",
    "CachedFeatures",
    "Extracted",
    "Extractor",
    "FeatureCache",
    "Form",
    "PictureReport",
    "Storage",
    "create_backbone",
    "default_cache",
    "extract_pictures",
    "grid_boxes",
    "import_pictures",
    "picture_split",
    "pool_boxes",
]
