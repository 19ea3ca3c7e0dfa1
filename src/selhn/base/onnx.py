"""onnxruntime, which by itself would report on every process that uses it."""

import os
from typing import Any


def import_onnxruntime() -> Any:
    """The module, with its telemetry off; only before the first import this also keeps it from the disk."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime
