"""Captions to words, and words to ids."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from selhn.base.errors import Damaged, SelhnError
from selhn.base.files import write_whole
from selhn.base.untrusted import read_json
from selhn.text.tokenizer import TokenKinds, check_texts, padded

PAD, START, END, UNKNOWN, MASK = "<pad>", "<start>", "<end>", "<unk>", "<mask>"
VOCABULARY_FILE = "vocabulary.json"

# Near the Penn Treebank rules that NLTK follows, so that published vocabularies fit: hyphens and slashes
# stay inside words, contractions are cut, a comma or colon before a digit is part of a number.
_LETTER = r"[^\s.,:;@\#$%&?!()\[\]{}<>\"“”«»'`-]"
_TOKEN = re.compile(
    rf"""\.{{2,}} | -- | `` | ''
    | n't(?!\w) | '(?:s|m|d|ll|re|ve)(?![\w-])
    | (?<!\w)(?:can(?=not(?!\w))|gon(?=na(?!\w))|wan(?=na(?!\w))|got(?=ta(?!\w))|gim(?=me(?!\w))|lem(?=me(?!\w)))
    | (?:[^\W\d]\.)+(?=\s+\S) | (?<!\w)(?:mr|mrs|ms|dr|st|jr|sr|vs)\.(?=\s+\S)
    | (?:(?!n't(?!\w))(?:{_LETTER} | -(?!-) | [.,:](?=\d) | \.(?=\w) | (?<=\w)'(?!(?:s|m|d|ll|re|ve)(?![\w-]))(?=\w)))+
    | \S""",
    re.VERBOSE,
)
_OPENING_QUOTE = re.compile(r'(?:(?<=[\s(\[{<])|(?<!.))["“]')


FUNCTION_WORDS = frozenset(
    """
    a about above across against along an and another are around as at away back be been behind being
    below beside between both by down each for from front had has have having he her him his in into is
    it its like many near next of off on one onto or other out over s several she side some someone
    something that the their them there they this three through to toward towards two under up very was
    were which while who with
    """.split()  # noqa: SIM905
)
"""Words that say nothing about what is in a picture. Callers may add others for their own purpose."""


def split_words(text: str) -> list[str]:
    """The words of a caption in lower case; punctuation and contraction endings are separate words."""
    text = text.lower()
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).replace("’", "'").replace("”", '"')
    if '"' in text or "“" in text:
        text = _OPENING_QUOTE.sub(" `` ", text).replace('"', " '' ")
    return _TOKEN.findall(text)


class Vocabulary:
    """Words and their ids in SCAN's layout: `<pad> <start> <end> <unk>`, words, optionally `<mask>`.

    Args:
        words: all words in the order of their ids, the four special words first.
        max_length: longest text in tokens, including `<start>` and `<end>`; None means no limit.
    """

    def __init__(self, words: Sequence[str], max_length: int | None = None):
        self.words = list(words)
        self.ids = {word: i for i, word in enumerate(self.words)}
        if self.words[:4] != [PAD, START, END, UNKNOWN]:
            raise SelhnError(
                f"a vocabulary must begin with {PAD} {START} {END} {UNKNOWN}, but begins with {self.words[:4]}: "
                "make one with Vocabulary.build"
            )
        if len(self.ids) != len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise SelhnError(f"the vocabulary has {twice!r} more than once: every word needs one id")
        if max_length is not None and (not isinstance(max_length, int) or max_length < 3):
            raise SelhnError(f"max_length must be at least 3 ({START}, a word, {END}), got {max_length!r}")
        self.max_length = max_length
        self.size = len(self.words)
        self.pad_id = 0
        self.mask_id = self.ids.get(MASK)
        special = torch.tensor([word in (PAD, START, END, MASK) for word in self.words])
        ordinary = torch.tensor(
            [i for i, word in enumerate(self.words) if i > 3 and word != MASK], dtype=torch.int64
        )
        self.kinds = TokenKinds(special, torch.zeros_like(special), ordinary)

    @classmethod
    def build(
        cls, captions: Iterable[str], min_count: int = 4, max_length: int | None = None
    ) -> "Vocabulary":
        """The words that occur at least `min_count` times, most frequent first, then alphabetically."""
        counts = Counter(chain.from_iterable(() if isinstance(captions, str) else map(split_words, captions)))
        if not counts:
            raise SelhnError("there are no captions: give a list of texts, such as data.train.captions")
        kept = sorted(
            (word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word)
        )
        if not kept:
            raise SelhnError(f"no word occurs {min_count} times in these captions: lower min_count")
        return cls([PAD, START, END, UNKNOWN, *kept, MASK], max_length)

    @classmethod
    def from_json(
        cls, path: Path | str, add_mask: bool = False, max_length: int | None = None
    ) -> "Vocabulary":
        """Read SCAN's `{word2idx, idx2word, idx}`; `add_mask` appends `<mask>` if the file has none."""
        content = read_json(Path(path))
        ids = content.get("word2idx")
        if not isinstance(ids, dict) or sorted(ids.values(), key=str) != sorted(range(len(ids)), key=str):
            raise Damaged(
                f"{path} is not a vocabulary: it needs word2idx, a map of words to the ids 0, 1, 2, ..."
            )
        words = sorted(ids, key=ids.__getitem__)
        if add_mask and MASK not in ids:
            words.append(MASK)
        return cls(words, max_length or content.get("max_length"))

    def to_json(self, path: Path | str) -> None:
        """Write SCAN's layout, plus `max_length` if it is set; SCAN's own reader ignores that."""
        content: dict[str, Any] = {
            "word2idx": self.ids,
            "idx2word": dict(enumerate(self.words)),
            "idx": self.size,
        }
        if self.max_length is not None:
            content["max_length"] = self.max_length
        write_whole(Path(path), json.dumps(content))

    def encode(self, texts: list[str]) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
        check_texts(texts)
        kept = None if self.max_length is None else self.max_length - 2
        start, end, unknown, ids = 1, 2, 3, self.ids
        words = (split_words(text)[:kept] for text in texts)
        return padded([[start, *(ids.get(word, unknown) for word in own), end] for own in words], self.pad_id)

    def spell(self, ids: list[int]) -> list[str]:
        return [self.words[i] for i in ids]

    def save(self, folder: Path) -> None:
        self.to_json(Path(folder) / VOCABULARY_FILE)
