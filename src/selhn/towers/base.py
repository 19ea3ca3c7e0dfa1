"""What an index needs from a model: vectors of sentences and of pictures, as numpy arrays, whatever computes them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int
from PIL import Image

from selhn.base.errors import SelhnError
from selhn.base.names import require_type
from selhn.towers.description import Cutoff


@runtime_checkable
class TowerTokenizer(Protocol):
    """What reads sentences."""

    ordinary: Int[np.ndarray, " W"]
    """Ids that stand for words, or for pieces of words: not padding, start, end, mask or unknown."""
    inner: Bool[np.ndarray, " V"]
    """Pieces that continue a word; none in a vocabulary of whole words."""

    def encode(self, texts: Sequence[str]) -> tuple[Int[np.ndarray, "T N"], Bool[np.ndarray, "T N"]]:
        """Ids (int64) and mask (True = token), padded to the longest text."""

    def spell(self, ids: Sequence[int]) -> list[str]:
        """The token of each id."""


class AbstractTowers(ABC):
    """Two towers, one for pictures and one for sentences, with vectors in one space.

    `Towers` runs ONNX files; `towers_of` puts a model of torch in this place.
    """

    name: str
    """For people."""
    digest: str
    """Identifies the vectors: those of towers with different digests are never compared."""
    width: int
    """d, the numbers of a vector."""
    source: str | None = None
    """The name by which `open_towers` finds these towers again, such as "ready"; None if only their files do."""
    is_product: bool = True
    """Whether a score is the product of two vectors."""
    feature_dim: int | None = None
    """F, the numbers of a region, if these towers take regions and know."""
    vision: str = ""
    """The name of what turns pictures into the regions that these towers were trained on; `with_extractor` takes it."""
    features: str = ""
    """Identifies how pictures become vectors, for caches; empty if these towers take regions only."""
    resized: tuple[int, int] | None = None
    """Width and height, if `prepare` begins with squashing a picture to that size: a decoder may do so before."""
    has_parts: bool = False
    """Whether `embed_parts` can tell."""
    cutoff: Cutoff | None = None
    """Which scores mean a match; None if that is unknown."""
    in_threads: bool = True
    """Whether pictures are computed fastest one at a time, each in a thread of its own, as on a CPU."""
    tokenizer: TowerTokenizer

    def to(self, device: Any) -> None:  # noqa: B027
        """Compute on a device of torch, such as "cuda", if these towers can; ONNX files stay where they are."""

    def with_extractor(self, extractor: Any, device: Any = "cpu") -> "AbstractTowers":
        """These towers with what turns pictures into the regions that they take, or its name, on a device."""
        if self.features:
            raise SelhnError(f"{self.name} takes pictures and needs no extractor: leave the extractor out")
        raise self.takes_regions()

    def takes_regions(self) -> SelhnError:
        """The error of a picture that is given to towers of regions."""
        return SelhnError(
            f"{self.name} takes the regions of pictures, not pictures: give vectors or regions, or export the model "
            f"again with its vision model, `selhn export towers RUN OUT --extractor {self.vision or 'NAME'}`"
        )

    @property
    def picture_digest(self) -> str:
        """Identifies the vectors of pictures in the cache that all towers share; no file can choose it."""
        return self.digest

    @abstractmethod
    def embed_texts(self, texts: Sequence[str]) -> Float[np.ndarray, "T d"]:
        """The vectors of sentences, float32."""

    def prepare(self, picture: Image.Image) -> Any:
        """What can be done ahead for an RGB picture, in another thread: the input of `embed_prepared`."""
        raise self.takes_regions()

    def embed_prepared(self, prepared: Sequence[Any]) -> Float[np.ndarray, "I d"]:
        """The vectors of prepared pictures, float32."""
        raise self.takes_regions()

    def embed_pictures(self, pictures: Sequence[Image.Image]) -> Float[np.ndarray, "I d"]:
        """The vectors of RGB pictures, float32."""
        if isinstance(pictures, Image.Image):
            raise SelhnError("pictures must be a list of pictures: for one picture, give [picture]")
        for picture in pictures:
            require_type(
                "a picture", picture, Image.Image, "open a file with PIL.Image.open(PATH).convert('RGB')"
            )
            if picture.mode != "RGB":
                raise SelhnError(f"a picture has the mode {picture.mode}: give picture.convert('RGB')")
        return self.embed_prepared([self.prepare(picture) for picture in pictures])

    def embed_regions(
        self, regions: Float[np.ndarray, "I M F"], mask: Bool[np.ndarray, "I M"]
    ) -> Float[np.ndarray, "I d"]:
        """The vectors of pictures whose regions are known, float32."""
        raise SelhnError(
            f"{self.name} takes pictures, not regions: give pictures or vectors, or export the model again with "
            "--extractor none"
        )

    def embed_parts(self, prepared: Any) -> tuple[Float[np.ndarray, "M d"], Float[np.ndarray, "M 4"]] | None:
        """Parts of one picture, each as if it were the whole, and their boxes (x1, y1, x2, y2 as shares); None if
        these towers cannot tell."""
        return None

    def score(
        self, images: Float[np.ndarray, "I d"], texts: Float[np.ndarray, "T d"]
    ) -> Float[np.ndarray, "I T"]:
        """Every picture against every sentence."""
        return images @ texts.T

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Keep these towers in a new folder, for an index that is to be searched without asking for them."""
