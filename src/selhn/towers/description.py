"""`towers.json`: what is in a towers folder. Every value is checked before it is used, for it may be a stranger's."""

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

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
    part_output: str | None = None
    boxes: tuple[tuple[float, ...], ...] = ()
    """Where the parts of `part_output` are: x1, y1, x2, y2 as shares of width and height."""
    vision: str | None = None
    """The vision model whose features it was trained on, if it has a name."""


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
    cutoff: Mapping[str, Any] | None = None
    """Which scores mean a match: counts of words, offset and slope; see `selhn.search.Fit`."""
    bank: str | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Of every other file."""
    about: Mapping[str, Any] = field(default_factory=dict)

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
            return described(content)
        except SelhnError as wrong:
            raise Damaged(f"{path}: {wrong}; {AGAIN}") from None

    def content(self) -> dict[str, Any]:
        """What `towers.json` says."""
        image = asdict(self.image)
        output, boxes = image.pop("part_output"), image.pop("boxes")
        parts = None if output is None else {"output": output, "boxes": boxes}
        return {"format": FORMAT, **asdict(self), "image": {**image, "parts": parts}}


def described(content: Mapping[str, Any]) -> Description:
    """From the values of `towers.json`."""
    sums = _value(content, "sha256", dict)
    for name, digest in sums.items():
        _plain(name)
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise SelhnError(f"the checksum of {name} is not a SHA-256")
    image, pictures = _image(_value(content, "image", dict)), _value(content, "pictures", dict, None)
    if (pictures is None) != (image.input == "regions"):
        raise SelhnError("a network for pixels needs to know how pictures are prepared, one for regions not")
    bank = _value(content, "bank", str, None)
    found = Description(
        name=_text(content, "name", 200),
        digest=_text(content, "digest", 200),
        width=_number(content, "width", MOST_WIDTH),
        score=_value(content, "score", Literal["product", "order"]),
        image=image,
        text=_words(_value(content, "text", dict)),
        pictures=None if pictures is None else _preparation(pictures),
        cutoff=_cutoff(_value(content, "cutoff", dict, None)),
        bank=bank,
        sha256=sums,
        about=_value(content, "about", dict, {}),
    )
    for name in (found.image.file, found.text.file, found.text.tokenizer, *([] if bank is None else [bank])):
        if name not in sums:
            raise SelhnError(f"{name[:100]!r} is not among the files with a checksum")
    return found


def _image(content: Mapping[str, Any]) -> ImageSide:
    _only(content, "image", ImageSide.__dataclass_fields__.keys() - {"part_output", "boxes"} | {"parts"})
    kind = _value(content, "input", Literal["pixels", "regions"])
    parts = _value(content, "parts", dict, None)
    if parts is not None:
        _only(parts, "parts", {"output", "boxes"})
    return ImageSide(
        file=_network(content),
        input=kind,
        inputs=_names(content, 1 if kind == "pixels" else 2),
        output=_text(content, "output", 200),
        features=_text(content, "features", 1000, ""),
        feature_dim=_number(content, "feature_dim", MOST_WIDTH, kind == "regions"),
        part_output=None if parts is None else _text(parts, "output", 200),
        boxes=() if parts is None else _boxes(_value(parts, "boxes", tuple)),
        vision=_text(content, "vision", 1000, "") or None,
    )


def _words(content: Mapping[str, Any]) -> TextSide:
    _only(content, "text", TextSide.__dataclass_fields__.keys())
    special = _value(content, "special", tuple, [])
    if len(special) > MOST_IDS or not all(type(i) is int and 0 <= i < MOST_IDS for i in special):
        raise SelhnError(f"special holds something that is not an id below {MOST_IDS:,}")
    return TextSide(
        file=_network(content),
        inputs=_names(content, 2),
        output=_text(content, "output", 200),
        tokenizer=_plain(_value(content, "tokenizer", str, "tokenizer.json")),
        pad_id=_number(content, "pad_id", MOST_IDS, least=0) or 0,
        max_length=_number(content, "max_length", MOST_TOKENS, False),
        pad_to=_number(content, "pad_to", MOST_TOKENS, False),
        special=tuple(special),
        inner_prefix=_value(content, "inner_prefix", str, None) or None,
    )


def _preparation(content: Mapping[str, Any]) -> Preparation:
    _only(content, "pictures", Preparation.__dataclass_fields__.keys())
    lists = {}
    for name, number, kind in (("size", 2, int), ("mean", 3, float), ("deviation", 3, float)):
        lists[name] = tuple(_value(content, name, tuple[kind, ...]))  # type: ignore[valid-type]
        if len(lists[name]) != number or not all(abs(x) < 1e9 for x in lists[name]):
            raise SelhnError(f"{name} of pictures must be {number} numbers")
    return Preparation(
        **lists,
        shorter_side=_value(content, "shorter_side", int, None),
        resampling=_value(content, "resampling", str, "bicubic"),
    )


def _cutoff(content: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if content is None:
        return None
    counts = _value(content, "counts", dict)
    if not all(type(n) is int and 0 <= n < 2**53 for n in counts.values()):
        raise SelhnError("counts of the cut-off must be whole numbers")
    for name in ("offset", "slope"):
        line = _value(content, name, tuple[float, ...])
        if len(line) != _LINES or not all(abs(x) < 1e9 for x in line):
            raise SelhnError(f"{name} of the cut-off must have {_LINES} numbers")
    _value(content, "learnt", dict, {})
    return content


def _boxes(rows: list[Any]) -> tuple[tuple[float, ...], ...]:
    for row in rows:
        require_kind("a box of parts", row, tuple[float, ...])
    if not 0 < len(rows) <= MOST_PARTS or {len(row) for row in rows} != {4}:
        raise SelhnError(f"boxes of parts must be 1 to {MOST_PARTS:,} times four numbers")
    if not all(0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1 for x1, y1, x2, y2 in rows):
        raise SelhnError("a box needs 0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1")
    return tuple(tuple(map(float, row)) for row in rows)


_REQUIRED: Any = object()


def _value(content: Mapping[str, Any], name: str, kind: Any, otherwise: Any = _REQUIRED) -> Any:
    """The value of this type; null and a missing one are `otherwise`."""
    found = content.get(name)
    if found is None and otherwise is not _REQUIRED:
        return otherwise
    if kind is dict:
        if not isinstance(found, dict):
            raise SelhnError(f"{name} must be an object of JSON")
        return found
    require_kind(name, found, kind)
    return found


def _text(content: Mapping[str, Any], name: str, longest: int, otherwise: Any = _REQUIRED) -> str:
    found = _value(content, name, str, otherwise)
    if len(found) > longest:
        raise SelhnError(f"{name} has {len(found):,} characters, {longest} at the most are allowed")
    if not found.isprintable():  # it is shown, and half a character cannot be written
        raise SelhnError(f"{name} has characters that cannot be printed: {found[:100]!r}")
    return found


def _number(content: Mapping[str, Any], name: str, most: int, required: bool = True, least: int = 1) -> Any:
    found = _value(content, name, int, _REQUIRED if required else None)
    if found is not None and not least <= found <= most:
        raise SelhnError(f"{name} is {found}: it must be from {least} to {most:,}")
    return found


def _names(content: Mapping[str, Any], number: int) -> tuple[str, ...]:
    found = _value(content, "inputs", tuple)
    if len(found) != number or not all(isinstance(name, str) and len(name) <= 200 for name in found):
        raise SelhnError(f"inputs must be {number} names")
    return tuple(found)


def _plain(name: str) -> str:
    if not _PLAIN.fullmatch(name) or name == DESCRIPTION_FILE:
        raise SelhnError(f"{name[:100]!r} is not a plain file name")
    return name


def _network(content: Mapping[str, Any]) -> str:
    """The file of a network; onnxruntime reads one called `.ort` in another format, unknown to `check_graph`."""
    name = _plain(_value(content, "file", str))
    if not name.endswith(".onnx"):
        raise SelhnError(f"the file of a network must end with .onnx, not {name!r}")
    return name


def _only(content: Mapping[str, Any], where: str, known: Collection[str]) -> None:
    """Refuse what this version does not know, where it would change vectors."""
    foreign = sorted(set(content) - set(known))
    if foreign:
        raise SelhnError(f"{where} has {foreign[0][:100]!r}, which this version does not know")
