"""Pictures to region features: vision models, grids and boxes, a cache, and folders of pictures as data sets."""

from selhn.pictures.backbones import Backbone, create_backbone
from selhn.pictures.cache import CachedFeatures, FeatureCache, Storage, default_cache
from selhn.pictures.dataset import import_pictures, picture_split
from selhn.pictures.extraction import Extracted, PictureReport, extract_pictures
from selhn.pictures.extractor import Extractor, Form
from selhn.pictures.regions import grid_boxes, pool_boxes

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
