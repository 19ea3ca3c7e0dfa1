"""Sentences to token ids by the library `tokenizers`: word pieces of BERT, whole words, the pieces of CLIP and SigLIP.

A stranger's `tokenizer.json` is read for the steps below only. Other steps could run without end (regular expressions),
add any ids, or end the process. Steps that make a text longer, one after the other, do so up to a limit: the sentences
of the first run need not have the letter that grows.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from selhn.base.errors import Damaged, MissingExtra, pip_install
from selhn.base.names import require_texts
from selhn.base.untrusted import read_json
from selhn.towers.description import MOST_IDS, TextSide
from selhn.towers.words import PATTERNS

MOST_BYTES = 2**26
"""Of `tokenizer.json`; that of SigLIP has 35 MB with its indentation."""
_MODELS = {"WordPiece", "WordLevel", "BPE", "Unigram"}
_STEPS = {
    *("Sequence", "BertNormalizer", "Lowercase", "StripAccents", "Strip", "NFC", "NFD", "NFKC", "NFKD"),
    *("Replace", "Prepend", "Precompiled", "BertPreTokenizer", "Whitespace", "WhitespaceSplit"),
    *("Punctuation", "Digits", "Split", "ByteLevel", "Metaspace"),
}
"""Steps before a text is cut into pieces, by their names in `tokenizers`."""
_CHARACTERS = "precompiled_charsmap"
_GROWTH = {
    **{"NFKC": 18, "NFKD": 18, "NFD": 4, "BertNormalizer": 4, "NFC": 3},
    **{"Lowercase": 2, "Prepend": 2, "ByteLevel": 2, "Metaspace": 2},
}
"""How many times as long a step can make a text; others as their content says, or not at all."""
MOST_GROWTH = 1_000
"""Of all steps together; our vocabularies have 96."""
MOST_CHARACTERS = 100
"""Of every text in a step or in the settings of the model."""


class FileTokenizer:
    """The tokenizer of a towers folder: a `TowerTokenizer`.

    Args:
        path: its `tokenizer.json`.
        text: how the network takes texts.
    """

    def __init__(self, path: Path, text: TextSide):
        try:
            import tokenizers
        except ImportError as error:
            raise MissingExtra(f"sentences need the tokenizers library: {pip_install('search')}") from error
        content, start, end = read_tokenizer(path)
        self._path = path
        with _failing(path):
            self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
        self._start, self._end, self.pad_id, self._pad_to = start, end, text.pad_id, text.pad_to
        longest = text.max_length or text.pad_to
        if longest is not None:
            room = longest - len(start) - len(end)
            if room < 1:
                raise Damaged(f"{path} leaves no token for words in texts of {longest} tokens")
            self._tokenizer.enable_truncation(room)
        self._special, self._inner_prefix = text.special, text.inner_prefix

    @cached_property
    def _pieces(self) -> dict[str, int]:
        return self._tokenizer.get_vocab(with_added_tokens=True)

    @cached_property
    def size(self) -> int:
        """V, one more than the largest id."""
        return max(self._pieces.values()) + 1

    @cached_property
    def ordinary(self) -> Int[np.ndarray, " W"]:
        """Ids that stand for words, or for pieces of words."""
        is_ordinary = np.ones(self.size, bool)
        is_ordinary[[i for i in self._special if i < self.size]] = False
        return np.flatnonzero(is_ordinary)

    @cached_property
    def inner(self) -> Bool[np.ndarray, " V"]:
        """Pieces that continue a word."""
        inner, prefix = np.zeros(self.size, bool), self._inner_prefix
        if prefix:
            inner[[i for piece, i in self._pieces.items() if piece.startswith(prefix)]] = True
        return inner

    def encode(self, texts: Sequence[str]) -> tuple[Int[np.ndarray, "T N"], Bool[np.ndarray, "T N"]]:
        """Ids (int64) and mask (True = token), padded to the longest text."""
        rows = self.rows(texts)
        return self.padded(rows)

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text."""
        require_texts(texts)
        # JSON files may contain half a character (a lone surrogate), which the library refuses.
        whole = [t if t.isascii() else t.encode("utf-8", "replace").decode("utf-8") for t in texts]
        with _failing(self._path):
            found = self._tokenizer.encode_batch_fast(whole, add_special_tokens=False)
        return [[*self._start, *row.ids, *self._end] for row in found]

    def padded(self, rows: Sequence[Sequence[int]]) -> tuple[Int[np.ndarray, "T N"], Bool[np.ndarray, "T N"]]:
        """Rows of ids as one array, and which of them are tokens."""
        longest = self._pad_to or max(map(len, rows))
        tokens = np.full((len(rows), longest), self.pad_id, np.int64)
        mask = np.full(tokens.shape, self._pad_to is not None)
        for number, row in enumerate(rows):
            tokens[number, : len(row)] = row
            mask[number, : len(row)] = True
        return tokens, mask

    def spell(self, ids: Sequence[int]) -> list[str]:
        """The token of each id."""
        return [self._tokenizer.id_to_token(int(i)) or "" for i in ids]


@contextmanager
def _failing(path: Path) -> Iterator[None]:
    """Errors of the library are those of the file: it has no class for them, and panics of Rust are no `Exception`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # Ctrl-C, say
        raise Damaged(f"{path} is damaged ({str(error)[:200]}): copy the folder again") from None


def read_tokenizer(path: Path) -> tuple[dict[str, Any], list[int], list[int]]:
    """The parts of a `tokenizer.json` that are used, and the ids before and after a text."""
    if path.stat().st_size > MOST_BYTES:
        raise Damaged(f"{path} has {path.stat().st_size:,} bytes, too many for a tokenizer")
    content = read_json(path)
    model = content.get("model")
    if not isinstance(model, dict) or not _is_one(model.get("type", "WordPiece"), _MODELS):
        raise Damaged(f"{path} has no model of {', '.join(sorted(_MODELS))}")
    vocabulary = model.get("vocab")
    ids: list[Any] = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    if isinstance(vocabulary, list):  # of Unigram: pieces with their scores
        ids = list(range(len(vocabulary)))
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise Damaged(f"{path} has added tokens that are not objects")
    ids += [token.get("id") for token in added]
    if not ids or not all(type(i) is int and 0 <= i < min(MOST_IDS, 16 * len(ids)) for i in ids):
        raise Damaged(f"{path} has pieces without an id, or with large gaps between the ids")
    if model.get("max_input_chars_per_word", 100) not in range(1, 1001):
        raise Damaged(f"{path} cuts words of any length: max_input_chars_per_word must be from 1 to 1,000")
    if any(isinstance(value, str) and len(value) > MOST_CHARACTERS for value in model.values()):
        raise Damaged(f"{path} has a setting of more than {MOST_CHARACTERS} characters")
    _check_steps(path, [content.get("normalizer"), content.get("pre_tokenizer")])
    start, end = _around(path, content.get("post_processor"), set(ids))
    unused = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    return {**content, **unused}, start, end


def _check_steps(path: Path, parts: list[Any]) -> None:
    growth = 1
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, str) and len(part) > MOST_CHARACTERS:
            raise Damaged(
                f"{path} has a step with a text of {len(part):,} characters, which selhn does not run"
            )
        elif not isinstance(part, dict):
            continue
        elif len(part) == 1 and "String" in part:
            if part["String"] == "":
                raise Damaged(
                    f"{path} has a step that finds its pattern everywhere, which selhn does not run"
                )
            parts += part.values()
        elif len(part) == 1 and "Regex" in part:
            if not _is_one(part["Regex"], PATTERNS):
                raise Damaged(f"{path} has a regular expression that selhn does not know, and does not run")
        else:
            if not _is_one(part.get("type"), _STEPS):
                raise Damaged(f"{path} has a step {str(part.get('type'))[:80]!r}, which selhn does not run")
            growth *= _growth(path, part)
            parts += [value for name, value in part.items() if name != _CHARACTERS]
    if growth > MOST_GROWTH:
        raise Damaged(
            f"{path} has steps that can make a text {growth:.0e} times as long: selhn does not run them"
        )


def _growth(path: Path, step: dict[str, Any]) -> int:
    if step["type"] == "Replace":
        content = step.get("content")
        return max(1, len(content)) if isinstance(content, str) else 1
    if step["type"] != "Precompiled":
        return _GROWTH.get(step["type"], 1)
    try:  # the length of a table, the table, and what characters become
        raw = base64.b64decode(step[_CHARACTERS], validate=True)
    except (KeyError, TypeError, ValueError):
        raise Damaged(
            f"{path} has a table of characters that cannot be read: copy the folder again"
        ) from None
    table = 4 + int.from_bytes(raw[:4], "little")
    return max(1, *map(len, raw[table:].split(b"\0")))


def _is_one(value: Any, known: set[str]) -> bool:
    return isinstance(value, str) and value in known


def _around(path: Path, processor: Any, known: set[int]) -> tuple[list[int], list[int]]:
    """The ids that a post-processor puts before and after one text."""
    start: list[Any] = []
    end: list[Any] = []
    try:
        steps = processor["processors"] if processor and processor["type"] == "Sequence" else [processor]
        for step in steps:
            kind = step["type"] if step else "ByteLevel"
            if kind in ("BertProcessing", "RobertaProcessing"):
                start, end = [step["cls"][1]], [step["sep"][1]]
            elif kind == "TemplateProcessing":
                start, end = _template(step)
            elif kind != "ByteLevel":  # which only changes where tokens are said to be
                raise TypeError
    except (TypeError, KeyError, IndexError, AttributeError):
        raise Damaged(
            f"{path} has a post-processor that selhn does not know: export the model again"
        ) from None
    if not all(type(i) is int and i in known for i in (*start, *end)):
        raise Damaged(f"{path} puts ids around a text that no piece has")
    return start, end


def _template(step: dict[str, Any]) -> tuple[list[int], list[int]]:
    sides: list[list[int]] = [[], []]
    is_after = 0
    for piece in step["single"]:
        if "Sequence" in piece:
            is_after = 1
        else:
            sides[is_after] += step["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    return sides[0], sides[1]
