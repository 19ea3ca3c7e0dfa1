"""Files in, batches out: formats on disk, the checker, splits and batches."""

from selhn.data.batches import Augmentation, Batches, TextBlocks, image_blocks
from selhn.data.check import check
from selhn.data.features import DenseFeatures, PocketFeatures, Projection, RaggedFeatures
from selhn.data.formats import FORMATS, import_data, load_data
from selhn.data.formats.inspection import Report
from selhn.data.formats.native import write_native
from selhn.data.noise import with_noise
from selhn.data.resident import FeaturePrecision, QuantizedFeatures, make_resident, resident_bytes
from selhn.data.splits import Data, Features, Split
from selhn.data.steps import Pairs, Step

__all__ = [
    "FORMATS",
    "Augmentation",
    "Batches",
    "Data",
    "DenseFeatures",
    "FeaturePrecision",
    "Features",
    "Pairs",
    "PocketFeatures",
    "Projection",
    "QuantizedFeatures",
    "RaggedFeatures",
    "Report",
    "Split",
    "Step",
    "TextBlocks",
    "check",
    "image_blocks",
    "import_data",
    "load_data",
    "make_resident",
    "resident_bytes",
    "with_noise",
    "write_native",
]
