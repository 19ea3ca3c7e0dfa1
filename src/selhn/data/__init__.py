"""Files in, batches out: formats on disk, the checker, splits and batches."""

from selhn.data.batches import Augmentation, Batches, TextBlocks, image_blocks
from selhn.data.check import check
from selhn.data.features import DenseFeatures, Features, ImageByImage, RaggedFeatures, SomeImages
from selhn.data.formats import FORMATS, import_data, load_data, register_format
from selhn.data.formats.data_report import Report
from selhn.data.formats.native import write_native
from selhn.data.formats.pocket import PocketFeatures, Projection
from selhn.data.formats.truth import Truth, read_truth
from selhn.data.splits import COCO_FOLDS, Data, Split, make_resident, resident_bytes, with_noise
from selhn.data.steps import Pairs, PlannedStep

__all__ = ["COCO_FOLDS", "FORMATS", "Augmentation", "Batches", "Data", "DenseFeatures", "Features"]
__all__ += ["ImageByImage", "Pairs", "PocketFeatures", "Projection", "RaggedFeatures", "Report"]
__all__ += ["SomeImages", "Split", "PlannedStep", "TextBlocks", "check", "image_blocks", "import_data"]
__all__ += [
    "Truth",
    "load_data",
    "make_resident",
    "read_truth",
    "register_format",
    "resident_bytes",
    "with_noise",
    "write_native",
]
