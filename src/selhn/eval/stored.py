"""Scores on disk: a matrix filled one block of texts at a time, which can be resumed after a kill.

scores.npy           (I, T) float32 for `numpy.load`, in Fortran order: a text's column is contiguous
scores.partial.npy   the same, while columns are missing
scores.json          what was scored, how many blocks of texts are done, and their checksums

All checksums are verified whenever a folder is opened, which reads the matrix once.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from selhn.base.errors import Damaged, SelhnError
from selhn.base.files import LOCK_FILE, open_in_place, refuse_links, sync_folder, writing
from selhn.base.sealed import read_sealed_json, write_sealed_json
from selhn.base.untrusted import open_array
from selhn.data import Split, image_blocks
from selhn.data.batches import EncodedTexts
from selhn.models import AbstractMatcher
from selhn.models.matcher import taken_side

MATRIX_FILE, PARTIAL_FILE, STATE_FILE = "scores.npy", "scores.partial.npy", "scores.json"
ITEM = np.dtype("<f4")


class StoredScores:
    """A folder with a matrix of scores (I, T).

    A block counts as done once its columns are on the disk; finished blocks survive any later failure.

    Args:
        identity: what the scores are made from; a folder started with anything else is refused.
        block: texts in a block; a folder already started keeps its own, so that rounding stays the same.
        order: order in which texts are scored.
    """

    def __init__(
        self,
        folder: str | Path,
        identity: Mapping[str, str],
        shape: tuple[int, int],
        block: int,
        order: Int[Tensor, " T"],
    ):
        self.folder = Path(folder)
        refuse_links(self.folder, (MATRIX_FILE, PARTIAL_FILE, STATE_FILE, LOCK_FILE))
        self.path, self._partial, self._state = (
            self.folder / name for name in (MATRIX_FILE, PARTIAL_FILE, STATE_FILE)
        )
        self.identity, self.shape, self.block, self.done = dict(identity), shape, block, 0
        self._order, self._digests = order, list[str]()
        if self._state.exists():
            self._read_state()
        elif self.path.exists():
            raise SelhnError(f"{self.path} was not written by selhn: give another folder for the scores")
        else:
            self._write_state()
        if self.done == 0:
            self._allocate()
        elif self.complete and not self.path.exists() and self._partial.exists():
            os.replace(self._partial, self.path)
        found = self._open()
        for number, texts in enumerate(order.split(self.block)[: self.done]):
            digest = hashlib.sha256(np.ascontiguousarray(found.T[texts.numpy()]).data).hexdigest()
            if digest != self._digests[number]:
                raise Damaged(
                    f"{found.filename} is not what was written: remove {self.folder} and score again"
                )

    def _open(self, mode: Literal["r", "c"] = "r") -> Any:
        """The matrix, mapped into memory."""
        path = self.path if self.complete else self._partial
        try:
            found: Any = open_array(path, dims=(2,))
            if (found.dtype, found.shape) != (ITEM, self.shape) or not found.flags.f_contiguous:
                raise Damaged(f"it holds {found.dtype} {found.shape}")
        except SelhnError as wrong:
            raise Damaged(
                f"{path} is missing or cut off: remove {self.folder} and score again ({wrong})"
            ) from None
        return found if mode == "r" else np.memmap(path, ITEM, mode, found.offset, self.shape, "F")

    @property
    def complete(self) -> bool:
        return self.done * self.block >= self.shape[1]

    @property
    def matrix(self) -> Float[Tensor, "I T"]:
        """The finished matrix, mapped into memory; writes to the tensor do not reach the file."""
        return torch.from_numpy(self._open("c"))

    def write(self, texts: Int[Tensor, " t"], columns: Float[Tensor, "I t"]) -> None:
        rows = columns.T.float().contiguous().cpu().numpy().astype(ITEM, copy=False)
        try:
            start = self._open().offset
            with open_in_place(self._partial) as file:
                for text, row in zip(texts.tolist(), rows):
                    file.seek(start + text * row.nbytes)
                    file.write(row.data)
                file.flush()
                os.fsync(file.fileno())
            self._digests[self.done :] = [hashlib.sha256(rows.data).hexdigest()]
            self._write_state(self.done + 1)
            self.done += 1
            if self.complete:
                os.replace(self._partial, self.path)
                sync_folder(self.folder)
        except OSError as error:
            raise OSError(
                f"{self.folder} could not be written ({error.strerror}); the {self.done * self.block:,} "
                "texts scored before are kept: free some disk space and run it again to continue from there"
            ) from None

    def _read_state(self) -> None:
        what_to_do = f"remove {self.folder} and score again"
        written = read_sealed_json(self._state, what_to_do)
        there, known = written.get("identity"), written.get("checksums", [])
        block, done = (value if type(value := written.get(key)) is int else -1 for key in ("block", "done"))
        sensible = isinstance(known, list) and block > 0 and len(known) == done
        if not isinstance(there, dict) or not sensible or not 0 <= done <= -(-self.shape[1] // block):
            raise Damaged(f"{self._state} is damaged: {what_to_do}")
        changed = [what for what, value in self.identity.items() if there.get(what) != value]
        if changed:
            raise SelhnError(
                f"{self.folder} holds scores of something else (other {', '.join(changed)}): "
                "give another folder, or remove this one"
            )
        self.block, self.done, self._digests = block, done, known

    def _write_state(self, done: int = 0) -> None:
        state = {"done": done, "block": self.block, "shape": self.shape, "identity": self.identity}
        write_sealed_json(self._state, {**state, "checksums": self._digests[:done]})

    def _allocate(self) -> None:
        """Reserve the whole file at once, so that a disk that is too small fails now and not after hours."""
        num_bytes = ITEM.itemsize * self.shape[0] * self.shape[1]
        try:
            with open_in_place(self._partial) as file:
                file.truncate(0)
                header = {"descr": ITEM.str, "fortran_order": True, "shape": self.shape}
                np.lib.format.write_array_header_1_0(file, header)
                file.flush()
                _reserve(file.fileno(), file.tell() + num_bytes)
        except OSError as error:
            self._partial.unlink(missing_ok=True)
            raise OSError(
                f"{self.folder} has no space for the scores, {num_bytes:,} bytes ({error.strerror}): "
                "free some disk space, or give another folder"
            ) from None


def for_scores(folder: str | Path) -> AbstractContextManager[object]:
    """Create and lock the folder, so that no two processes write into one matrix."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise SelhnError(f"{folder} is a file: scores are kept in a folder, give another name")
    folder.mkdir(parents=True, exist_ok=True)
    return nullcontext() if (folder / MATRIX_FILE).exists() else writing(folder)


def identity_of_scores(
    model: AbstractMatcher, split: Split, texts: EncodedTexts, kind: str
) -> dict[str, str]:
    """What scores depend on, as text and digests; `texts` are as the tokenizer reads them."""
    images = (tensor for block in image_blocks(split) for tensor in block)
    return {
        **identity_of_model(model),
        "images": _digest(images),
        "texts": _digest([texts.tokens, texts.mask]),
        "kind of scores": kind,
        **{name: _digest([tensor]) for name, tensor in taken_side(model, split.side).items()},
    }


def identity_of_model(model: AbstractMatcher) -> dict[str, str]:
    """What a model's encodings depend on."""
    return {
        "model": model.name or type(model).__name__,
        "settings": json.dumps(model.settings, sort_keys=True, default=str),
        "weights": _digest(model.state_dict().values()),
    }


def digest_of(model: AbstractMatcher) -> str:
    """Identifies a model: models with different vectors have different digests."""
    return hashlib.blake2b(json.dumps(identity_of_model(model)).encode(), digest_size=12).hexdigest()


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # file systems that cannot reserve
                raise
    os.truncate(file, size)
