"""Networks by onnxruntime, with its telemetry turned off."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selhn.base.errors import Damaged, MissingExtra, SelhnError, pip_install

MOST_SEVERE = 4
"""onnxruntime prints only what ends the process; everything else is an error of ours."""


def import_onnxruntime() -> Any:
    """The module without telemetry. Before the first import, this also keeps it from writing to the disk."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    return onnxruntime


class OnnxSession:
    """A network that computes in the calling thread; several threads may call it at a time.

    Args:
        model: the file, or its content.
    """

    def __init__(self, model: Path | bytes):
        try:
            onnxruntime = import_onnxruntime()
        except ImportError as missing:
            raise MissingExtra(f"towers need {missing.name}: {pip_install('search')}") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = MOST_SEVERE
        self.name = str(model) if isinstance(model, Path) else "the network"
        content = str(model) if isinstance(model, Path) else model
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its classes have no common base but this
            raise Damaged(
                f"{self.name} cannot be run ({reason(error)}): copy the folder again, or export the model again"
            ) from None

    def sizes(self, name: str) -> list[int | str | None]:
        """The length of each axis of an input; not a number where it may have any length."""
        return next(own.shape for own in self._session.get_inputs() if own.name == name)

    def run(
        self, outputs: Sequence[str], inputs: Mapping[str, npt.NDArray[Any]]
    ) -> list[npt.NDArray[np.float32]]:
        """The outputs of one call."""
        try:
            return self._session.run(list(outputs), dict(inputs))
        except Exception as error:  # as above
            sizes = ", ".join(f"{name} {array.shape}" for name, array in inputs.items())
            raise SelhnError(
                f"{self.name} failed on {sizes} ({reason(error)}): check what it was given, or export the model again"
            ) from None


def reason(error: Exception) -> str:
    """The first line of what onnxruntime says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
