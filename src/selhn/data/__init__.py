"""Files in, batches out: formats on disk, the checker, splits and batches."""

from selhn.data.batches import Augmentation, Batches, TextBlocks, image_blocks
from selhn.data.check import check
from selhn.data.features import DenseFeatures, PocketFeatures, Projection, RaggedFeatures
from selhn.data.formats import FORMATS, import_data, load_data
from selhn.data.inspection import Report
from selhn.data.native import write_native
from selhn.data.splits import Data, Features, Split

__all__ = [
    "FORMATS",
    "Augmentation",
    "Batches",
    "Data",
    "DenseFeatures",
    "Features",
    "PocketFeatures",
    "Projection",
    "RaggedFeatures",
    "Report",
    "Split",
    "TextBlocks",
    "check",
    "image_blocks",
    "import_data",
    "load_data",
    "write_native",
]
