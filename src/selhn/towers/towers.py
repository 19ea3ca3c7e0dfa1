"""Towers of a folder: sentences and pictures to vectors with onnxruntime, numpy and tokenizers."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int
from PIL import Image

from selhn.base.errors import Damaged, SelhnError
from selhn.base.files import refuse_links
from selhn.base.folders import new_folder
from selhn.base.sealed import digest_file
from selhn.base.untrusted import open_array
from selhn.towers.base import AbstractTowers
from selhn.towers.description import DESCRIPTION_FILE, Description
from selhn.towers.first_run import first_run, has_passed, remember
from selhn.towers.onnx_check import check_graph
from selhn.towers.onnx_session import OnnxSession
from selhn.towers.tokenizer import FileTokenizer

TOKENS_AT_ONCE = 4096
"""Of texts in one call, with their padding."""
REGIONS_AT_ONCE = 4096
NUMBERS_AT_ONCE = 2**24
"""Differences that are in memory at a time while order scores are computed."""
MOST_FOLDER_BYTES = 2**34


class Towers(AbstractTowers):
    """The towers in a folder; `Towers.open` checks it.

    A file is read, and compared with its checksum, when it is first needed: a question in words needs no network for
    pictures. Pictures are computed one at a time, in the calling thread, so that callers may use several.
    """

    def __init__(self, folder: Path, description: Description, source: str | None = None):
        self.folder, self.description, self.source = folder, description, source
        self.name, self.digest, self.width = description.name, description.digest, description.width
        self.is_product = description.score == "product"
        self.features, self.feature_dim = description.image.features, description.image.feature_dim
        self.has_parts = description.image.parts is not None
        self.vision, self.cutoff = description.image.vision or "", description.cutoff
        self.resized = None if description.pictures is None else description.pictures.resized
        self._sessions: dict[str, OnnxSession] = {}
        self._lock = Lock()

    @classmethod
    def open(cls, path: Path | str) -> "Towers":
        """The towers that `selhn export towers` wrote; a folder that is new here is tried first, with limits."""
        folder = Path(path).expanduser().absolute()
        refuse_links(folder, [DESCRIPTION_FILE])
        description = Description.read(folder)
        refuse_links(folder, description.sha256)
        sizes = {name: _size(folder / name) for name in description.sha256}
        if sum(sizes.values()) > MOST_FOLDER_BYTES:
            raise Damaged(f"{folder} has {sum(sizes.values()) / 2**30:.0f} GiB, too many for towers")
        towers = cls(folder, description)
        content = (folder / DESCRIPTION_FILE).read_bytes()
        if not has_passed(content):
            for name in sizes:
                towers._verified(name)
            for name in (description.image.file, description.text.file):
                check_graph(folder / name, {file: sizes[file] for file in towers._weights_of(name)})
            first_run(folder, sum(sizes.values()))
            remember(content)
        return towers

    @cached_property
    def tokenizer(self) -> FileTokenizer:  # type: ignore[override]
        """What reads sentences."""
        text = self.description.text
        return FileTokenizer(self._verified(text.tokenizer), text)

    @property
    def picture_digest(self) -> str:
        """The SHA-256 of all that computes them; `digest` is what `towers.json` says, which a stranger can choose."""
        image, sums = self.description.image, self.description.sha256
        files = {name: sums[name] for name in sorted([image.file, *self._weights_of(image.file)])}
        pictures = self.description.pictures
        parts = [asdict(image), None if pictures is None else asdict(pictures), files]
        return sha256(json.dumps(parts).encode()).hexdigest()

    @cached_property
    def bank(self) -> Float[np.ndarray, "n d"] | None:
        """Vectors of texts that came with the towers, mapped from the disk; None if there are none."""
        name = self.description.bank
        if name is None:
            return None
        found = open_array(self._verified(name), dims=(2,))
        if found.shape[1] != self.width:
            raise Damaged(
                f"{self.folder / name} has vectors of {found.shape[1]} numbers instead of {self.width}"
            )
        return found

    def embed_texts(self, texts: Sequence[str]) -> Float[np.ndarray, "T d"]:
        vectors = np.empty((len(texts), self.width), np.float32)
        if not isinstance(texts, str) and len(texts) == 0:
            return vectors
        rows = self.tokenizer.rows(texts)
        # Texts of similar length go together, so that there is little padding.
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        while order:
            some = [order.pop()]  # the longest
            most = max(1, TOKENS_AT_ONCE // max(1, len(rows[some[0]])))
            while order and len(some) < most:
                some.append(order.pop())
            vectors[some] = self.embed_tokens(*self.tokenizer.padded([rows[number] for number in some]))
        return vectors

    def embed_tokens(
        self, tokens: Int[np.ndarray, "T N"], mask: Bool[np.ndarray, "T N"]
    ) -> Float[np.ndarray, "T d"]:
        """The vectors of sentences that a tokenizer has read."""
        text = self.description.text
        return self._vectors(
            text.file, text.output, dict(zip(text.inputs, (tokens, mask), strict=True)), len(tokens)
        )

    def prepare(self, picture: Image.Image) -> Float[np.ndarray, "3 H W"]:
        prepared = self.description.pictures
        return super().prepare(picture) if prepared is None else prepared(picture)

    def embed_prepared(self, prepared: Sequence[Any]) -> Float[np.ndarray, "I d"]:
        image, vectors = self.description.image, np.empty((len(prepared), self.width), np.float32)
        if image.input != "pixels":
            return super().embed_prepared(prepared)
        for number, pixels in enumerate(prepared):
            vectors[number] = self._vectors(image.file, image.output, {image.inputs[0]: pixels[None]}, 1)[0]
        return vectors

    def embed_regions(
        self, regions: Float[np.ndarray, "I M F"], mask: Bool[np.ndarray, "I M"]
    ) -> Float[np.ndarray, "I d"]:
        image = self.description.image
        if image.input != "regions":
            return super().embed_regions(regions, mask)
        if regions.ndim != 3 or regions.shape[2] != image.feature_dim or mask.shape != regions.shape[:2]:
            raise SelhnError(
                f"the regions have shape {regions.shape} and their mask {mask.shape}: give (I, M, {image.feature_dim}) "
                "and (I, M) for these towers"
            )
        vectors = np.empty((len(regions), self.width), np.float32)
        step = max(1, REGIONS_AT_ONCE // max(1, regions.shape[1]))
        for first in range(0, len(regions), step):
            own = regions[first : first + step].astype(np.float32), mask[first : first + step].astype(bool)
            inputs = dict(zip(image.inputs, own, strict=True))
            vectors[first : first + step] = self._vectors(image.file, image.output, inputs, len(own[0]))
        return vectors

    @property
    def num_regions(self) -> int | None:
        """M, if these towers take regions, and always so many."""
        image = self.description.image
        sizes = self._session(image.file).sizes(image.inputs[0])
        fixed = sizes[1] if image.input == "regions" and len(sizes) == 3 else None
        return fixed if isinstance(fixed, int) else None

    def embed_parts(self, prepared: Any) -> tuple[Float[np.ndarray, "M d"], Float[np.ndarray, "M 4"]] | None:
        image = self.description.image
        if image.parts is None:
            return None
        (found,) = self._session(image.file).run([image.parts.output], {image.inputs[0]: prepared[None]})
        boxes = np.array(image.parts.boxes, np.float32)
        wanted = (1, len(boxes), self.width)
        if found.shape != wanted:
            raise Damaged(
                f"{self.folder / image.file} gives parts of shape {found.shape} instead of {wanted}: "
                "export the model again"
            )
        return self._finite(found[0]).astype(np.float32), boxes

    def score(
        self, images: Float[np.ndarray, "I d"], texts: Float[np.ndarray, "T d"]
    ) -> Float[np.ndarray, "I T"]:
        """`image . text`, or `-|max(0, text - image)|` of order embeddings."""
        if self.is_product:
            return images @ texts.T
        rows = max(1, NUMBERS_AT_ONCE // max(1, texts.size))
        scores = np.empty((len(images), len(texts)), np.result_type(images, texts))
        for first in range(0, len(images), rows):
            lacking = np.maximum(texts - images[first : first + rows, None], 0)
            scores[first : first + rows] = -np.linalg.norm(lacking, axis=2)
        return scores

    def save(self, folder: Path) -> None:
        with new_folder(Path(folder)) as partial:
            for name in (DESCRIPTION_FILE, *self.description.sha256):
                shutil.copyfile(self.folder / name, partial / name)
            kept = Description.read(partial)
            for name, digest in kept.sha256.items():
                _compare(partial / name, digest)

    def _vectors(
        self, file: str, output: str, inputs: dict[str, npt.NDArray[Any]], items: int
    ) -> npt.NDArray[Any]:
        (found,) = self._session(file).run([output], inputs)
        if found.shape != (items, self.width):
            raise Damaged(
                f"{self.folder / file} gives {output} of shape {found.shape} instead of {(items, self.width)}: "
                "export the model again"
            )
        return self._finite(found)

    def _finite(self, vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not np.isfinite(vectors).all():
            raise SelhnError(
                f"the vectors of {self.name} have NaN or infinity: check the input, or export it again"
            )
        return vectors

    def _session(self, file: str) -> OnnxSession:
        with self._lock:
            if file not in self._sessions:
                for name in self._weights_of(file):
                    self._verified(name)
                self._sessions[file] = OnnxSession(self._verified(file))
            return self._sessions[file]

    def _weights_of(self, file: str) -> list[str]:
        """The files that may hold weights of a network: those of image.onnx are called `image.` and anything."""
        stem = f"{Path(file).stem}."
        return [name for name in self.description.sha256 if name.startswith(stem) and name != file]

    def _verified(self, name: str) -> Path:
        path = self.folder / name
        _compare(path, self.description.sha256[name])
        return path


def _compare(path: Path, digest: str) -> None:
    if digest_file(path) != digest:
        raise Damaged(f"{path} is not what was written (its checksum differs): copy the folder again")


def _size(path: Path) -> int:
    if not path.is_file():
        raise Damaged(f"{path} is missing: copy the folder again")
    return path.stat().st_size
