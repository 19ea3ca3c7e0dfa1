"""`towers.json`: what is in a towers folder. Every value is checked before it is used, for it may be a stranger's.

The dataclasses below are its form: each has the names and types of one object of JSON, and checks its own ranges.
"""

import re
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.names import require_kind
from selhn.base.untrusted import read_json
from selhn.towers.preparation import Preparation

DESCRIPTION_FILE = "towers.json"
FORMAT = 2
MOST_BYTES = 2**24
"""Of `towers.json`; that of the ready model has 50 kB, nearly all of them its cut-off."""
MOST_WIDTH, MOST_TOKENS, MOST_PARTS, MOST_IDS = 2**16, 2**14, 2**12, 2**22
AGAIN = "export the model again (selhn export towers), or copy the folder again"
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LINES = 4
"""Numbers of the offset and the slope of a cut-off."""


@dataclass(frozen=True)
class Parts:
    """The output with the vectors of parts of a picture."""

    output: str
    boxes: tuple[tuple[float, ...], ...]
    """Where they are: x1, y1, x2, y2 as shares of width and height."""

    def __post_init__(self) -> None:
        _require_short("output", self.output)
        if not 0 < len(self.boxes) <= MOST_PARTS or {len(row) for row in self.boxes} != {4}:
            raise SelhnError(f"boxes of parts must be 1 to {MOST_PARTS:,} times four numbers")
        if not all(0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1 for x1, y1, x2, y2 in self.boxes):
            raise SelhnError("a box needs 0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1")


@dataclass(frozen=True)
class ImageSide:
    """The network for pictures."""

    file: str
    input: Literal["pixels", "regions"]
    inputs: tuple[str, ...]
    output: str
    features: str = ""
    """How pictures become vectors: vectors of different identities are never mixed in a cache."""
    feature_dim: int | None = None
    """F, if it takes regions."""
    parts: Parts | None = None
    vision: str | None = None
    """The vision model whose features it was trained on, if it has a name."""

    def __post_init__(self) -> None:
        _require_network(self.file)
        _require_inputs(self.inputs, 1 if self.input == "pixels" else 2)
        _require_short("output", self.output)
        _require_short("features", self.features, 1000)
        _require_short("vision", self.vision or "", 1000)
        if self.input == "regions" and self.feature_dim is None:
            raise SelhnError("a network for regions needs a feature_dim")
        _require_range("feature_dim", self.feature_dim, MOST_WIDTH)


@dataclass(frozen=True)
class TextSide:
    """The network for sentences, and how they become its tokens."""

    file: str
    inputs: tuple[str, ...]
    output: str
    tokenizer: str = "tokenizer.json"
    pad_id: int = 0
    max_length: int | None = None
    """Longer texts are cut to this number of tokens."""
    pad_to: int | None = None
    """All texts are padded to this length, and padding counts as text, as in the training of SigLIP."""
    special: tuple[int, ...] = ()
    """Ids that are not words: padding, start, end, mask, unknown."""
    inner_prefix: str | None = None
    """How pieces begin that continue a word."""

    def __post_init__(self) -> None:
        _require_network(self.file)
        _require_plain(self.tokenizer)
        _require_inputs(self.inputs, 2)
        _require_short("output", self.output)
        _require_range("pad_id", self.pad_id, MOST_IDS, least=0)
        _require_range("max_length", self.max_length, MOST_TOKENS)
        _require_range("pad_to", self.pad_to, MOST_TOKENS)
        if len(self.special) > MOST_IDS or not all(0 <= i < MOST_IDS for i in self.special):
            raise SelhnError(f"special holds something that is not an id below {MOST_IDS:,}")


@dataclass(frozen=True)
class Cutoff:
    """Which scores mean a match, see `selhn.search.Fit`."""

    counts: dict[str, Any]
    """Number of training texts that have each word."""
    offset: tuple[float, ...]
    slope: tuple[float, ...]
    learnt: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(type(n) is int and 0 <= n < 2**53 for n in self.counts.values()):
            raise SelhnError("counts of the cut-off must be whole numbers")
        for name, line in (("offset", self.offset), ("slope", self.slope)):
            if len(line) != _LINES or not all(abs(x) < 1e9 for x in line):
                raise SelhnError(f"{name} of the cut-off must have {_LINES} numbers")


@dataclass(frozen=True)
class Description:
    """The content of `towers.json`."""

    name: str
    digest: str
    width: int
    score: Literal["product", "order"]
    image: ImageSide
    text: TextSide
    pictures: Preparation | None = None
    cutoff: Cutoff | None = None
    bank: str | None = None
    sha256: dict[str, str] = field(default_factory=dict)
    """Of every other file."""
    about: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Description":
        """The description of a folder, with all values checked; no other file is opened."""
        path = folder / DESCRIPTION_FILE
        if not path.is_file():
            raise NotFound(
                f"{folder} has no {DESCRIPTION_FILE}: name a folder that selhn export towers wrote"
            )
        if path.stat().st_size > MOST_BYTES:
            raise Damaged(f"{path} has {path.stat().st_size:,} bytes, too many for a description: {AGAIN}")
        content = read_json(path, what_to_do=AGAIN)
        if content.get("format") != FORMAT:
            raise Damaged(
                f"{path} has format {content.get('format')!r} where {FORMAT} is expected: export the model again "
                "with this version (selhn export towers), or install the version that wrote it"
            )
        try:
            # Further entries are notes; those of the objects inside would change vectors.
            return of_json(cls, "it", {own.name: content.get(own.name) for own in fields(cls)})
        except SelhnError as wrong:
            raise Damaged(f"{path}: {wrong}; {AGAIN}") from None

    def content(self) -> dict[str, Any]:
        """What `towers.json` says."""
        return {"format": FORMAT, **asdict(self)}

    def __post_init__(self) -> None:
        _require_short("name", self.name)
        _require_short("digest", self.digest)
        _require_range("width", self.width, MOST_WIDTH)
        if (self.pictures is None) != (self.image.input == "regions"):
            raise SelhnError(
                "a network for pixels needs to know how pictures are prepared, one for regions not"
            )
        for name, digest in self.sha256.items():
            _require_plain(name)
            if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
                raise SelhnError(f"the checksum of {name} is not a SHA-256")
        for file in filter(None, (self.image.file, self.text.file, self.text.tokenizer, self.bank)):
            if file not in self.sha256:
                raise SelhnError(f"{file[:100]!r} is not among the files with a checksum")


_INSIDE: dict[str, type[Any]] = {
    "image": ImageSide, "parts": Parts, "text": TextSide, "pictures": Preparation, "cutoff": Cutoff,
}  # fmt: skip
T = TypeVar("T")


def of_json(kind: type[T], where: str, content: Any) -> T:
    """A dataclass from an object of JSON with the names and types of its fields; null is the default."""
    _require_object(where, content)
    known = {own.name: own for own in fields(kind)}  # type: ignore[arg-type]
    if foreign := sorted(content.keys() - known):
        raise SelhnError(f"{where} has {foreign[0][:100]!r}, which this version does not know")
    given = {}
    for name, own in known.items():
        value = content.get(name)
        if value is None and (own.default, own.default_factory) != (MISSING, MISSING):
            continue
        require_kind(name, value, own.type)
        if get_origin(own.type) is dict:
            _require_object(name, value)
        inside = _INSIDE.get(name)
        given[name] = _tupled(value) if inside is None else of_json(inside, name, value)
    return kind(**given)


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value


def _require_object(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise SelhnError(f"{name} must be an object of JSON")


def _require_plain(name: str) -> None:
    if not _PLAIN.fullmatch(name) or name == DESCRIPTION_FILE:
        raise SelhnError(f"{name[:100]!r} is not a plain file name")


def _require_network(name: str) -> None:
    """onnxruntime reads a file called `.ort` in another format, unknown to `check_graph`."""
    _require_plain(name)
    if not name.endswith(".onnx"):
        raise SelhnError(f"the file of a network must end with .onnx, not {name!r}")


def _require_short(name: str, text: str, longest: int = 200) -> None:
    if len(text) > longest:
        raise SelhnError(f"{name} has {len(text):,} characters, {longest} at the most are allowed")
    if not text.isprintable():  # it is shown, and half a character cannot be written
        raise SelhnError(f"{name} has characters that cannot be printed: {text[:100]!r}")


def _require_range(name: str, found: int | None, most: int, least: int = 1) -> None:
    if found is not None and not least <= found <= most:
        raise SelhnError(f"{name} is {found}: it must be from {least} to {most:,}")


def _require_inputs(names: tuple[str, ...], number: int) -> None:
    if len(names) != number or not all(len(name) <= 200 for name in names):
        raise SelhnError(f"inputs must be {number} names")
