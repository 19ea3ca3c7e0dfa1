"""onnxruntime with its telemetry turned off."""

import os
from typing import Any


def import_onnxruntime() -> Any:
    """The module without telemetry. Before the first import, this also keeps it from writing to the disk."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime
