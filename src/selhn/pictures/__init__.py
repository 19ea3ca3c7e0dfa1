"""Photographs to features and to an index: vision models, a cache, a library, the ready model."""

from selhn.pictures.backbones import Backbone, create_backbone
from selhn.pictures.cache import CachedFeatures, FeatureCache, default_cache
from selhn.pictures.dataset import import_pictures, import_rows, picture_split
from selhn.pictures.embedding import EmbeddedPictures, embed_pictures
from selhn.pictures.extraction import Extracted, extract_pictures
from selhn.pictures.extractor import Extractor, Form, grid_boxes, load_extractor, pool_boxes
from selhn.pictures.indexing import index_pictures
from selhn.pictures.library import Library
from selhn.pictures.picture_files import Found, find_pictures, open_picture
from selhn.pictures.picture_report import PictureReport
from selhn.pictures.plans import Indexed, Plan

__all__ = [
    "Backbone",
    "CachedFeatures",
    "EmbeddedPictures",
    "Extracted",
    "Extractor",
    "FeatureCache",
    "Form",
    "Found",
]
__all__ += [
    "Indexed",
    "Library",
    "PictureReport",
    "Plan",
    "create_backbone",
    "default_cache",
    "embed_pictures",
]
__all__ += [
    "extract_pictures",
    "find_pictures",
    "grid_boxes",
    "import_pictures",
    "import_rows",
    "index_pictures",
]
__all__ += ["load_extractor", "open_picture", "picture_split", "pool_boxes"]
