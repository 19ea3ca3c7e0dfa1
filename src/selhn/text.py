"""Strings to tokens: a vocabulary of words, and the word pieces of BERT."""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from selhn.base.errors import Damaged, MissingExtra, NotFound, SelhnError, pip_install
from selhn.base.names import require_kind
from selhn.base.untrusted import read_json, read_lines

PAD, START, END, UNKNOWN, MASK = "<pad>", "<start>", "<end>", "<unk>", "<mask>"
VOCABULARY_FILE, PIECES_FILE, PIECE_LIST_FILE = "vocabulary.json", "tokenizer.json", "vocab.txt"
TOKENIZER_FILES = (VOCABULARY_FILE, PIECES_FILE)
"""The files that a tokenizer may be saved as."""

_STEPS = (
    "Sequence", "BertNormalizer", "Lowercase", "StripAccents", "Strip", "NFC", "NFD", "NFKC", "NFKD",
    "BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits",
)  # fmt: skip
"""Allowed steps before a text is cut into pieces, by their `tokenizers` names; none takes a regex."""


@dataclass(frozen=True)
class TokenKinds:
    """Which of the V token ids may be changed, and which belong to the token before them."""

    special: Bool[Tensor, " V"]
    """Padding, start, end and mask: never changed by augmentation."""
    inner: Bool[Tensor, " V"]
    """Pieces that continue a word."""
    ordinary: Int[Tensor, " W"]
    """Ids that may replace a word."""
    _copies: dict[torch.device, "TokenKinds"] = field(default_factory=dict, repr=False, compare=False)

    def on(self, device: torch.device) -> "TokenKinds":
        """A copy on a device, made once, so that a training step does not wait for the host."""
        if device not in self._copies:
            special, inner, ordinary = (kind.to(device) for kind in (self.special, self.inner, self.ordinary))
            self._copies[device] = TokenKinds(special, inner, ordinary)
        return self._copies[device]


@runtime_checkable
class Tokenizer(Protocol):
    """What a model needs to read sentences; it is saved with the model."""

    size: int
    """V, the number of token ids."""
    pad_id: int
    mask_id: int | None
    """The id of the mask token; None if the vocabulary has none."""
    kinds: TokenKinds

    def encode(self, texts: list[str]) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
        """Ids and mask (True = token), padded to the longest text."""

    def spell(self, ids: list[int]) -> list[str]:
        """The token of each id, as readable text."""

    def save(self, folder: Path) -> None:
        """Write the files that `load_tokenizer` reads."""


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
                f"a vocabulary begins with {PAD} {START} {END} {UNKNOWN}, this one with {self.words[:4]}"
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
        Path(path).write_text(json.dumps(content), encoding="utf-8")

    def encode(self, texts: list[str]) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
        check_texts(texts)
        kept = None if self.max_length is None else self.max_length - 2
        start, end, unknown, ids = 1, 2, 3, self.ids
        words = (split_words(text)[:kept] for text in texts)
        return _pad([[start, *(ids.get(word, unknown) for word in own), end] for own in words], self.pad_id)

    def spell(self, ids: list[int]) -> list[str]:
        return [self.words[i] for i in ids]

    def save(self, folder: Path) -> None:
        self.to_json(Path(folder) / VOCABULARY_FILE)


class WordPiece:
    """The word pieces of a BERT, with [CLS] before and [SEP] after. Needs the `tokenizers` library.

    Args:
        tokenizer: a `tokenizers.Tokenizer` with BERT's special tokens.
        max_length: longest text in tokens: the number of positions the encoder has.
    """

    def __init__(self, tokenizer: Any, max_length: int = 512):
        if isinstance(max_length, bool) or not isinstance(max_length, int) or not 3 <= max_length < 2**31:
            raise SelhnError(
                f"max_length must be a whole number of at least 3 ([CLS], a piece, [SEP]), got {max_length!r}"
            )
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length)
        self.tokenizer = tokenizer
        self.max_length = max_length
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        _require_special(vocabulary)
        self.size = _number_of_ids(vocabulary)
        from tokenizers.processors import BertProcessing

        # Our own post-processor: one from a file could add any ids, or abort the process.
        tokenizer.post_processor = BertProcessing(*((name, vocabulary[name]) for name in ("[SEP]", "[CLS]")))
        self.pad_id = vocabulary["[PAD]"]
        self.mask_id: int | None = vocabulary["[MASK]"]
        never = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")
        pieces = {i: piece for piece, i in vocabulary.items()}
        spelled = [pieces.get(i) for i in range(self.size)]
        special = torch.tensor([piece in never for piece in spelled])
        inner = torch.tensor([piece is not None and piece.startswith("##") for piece in spelled])
        ordinary = [
            i
            for i, piece in enumerate(spelled)
            if piece not in (None, "[UNK]", *never) and not piece.startswith("[unused")
        ]
        self.kinds = TokenKinds(special, inner, torch.tensor(ordinary, dtype=torch.int64))

    @classmethod
    def load(cls, path: Path | str, max_length: int | None = None) -> "WordPiece":
        """Read `tokenizer.json`, or `vocab.txt`, of a Hugging Face folder or of a saved model."""
        try:
            import tokenizers
        except ImportError as error:
            raise MissingExtra(f"word pieces need the tokenizers library: {pip_install('text')}") from error
        folder = Path(path)
        length = None
        if (folder / PIECES_FILE).exists():
            content, length = _read_pieces(folder / PIECES_FILE)
            try:
                tokenizer = tokenizers.Tokenizer.from_buffer(content.encode())
            except ValueError as error:
                raise Damaged(
                    f"{folder / PIECES_FILE} is cut off or damaged ({error}): copy it again"
                ) from None
        elif (folder / PIECE_LIST_FILE).exists():
            lower = read_json(folder / "tokenizer_config.json", optional=True).get("do_lower_case", True)
            require_kind(f"do_lower_case in {folder / 'tokenizer_config.json'}", lower, bool)
            pieces = {piece: i for i, piece in enumerate(read_lines(folder / PIECE_LIST_FILE))}
            _require_special(pieces)
            tokenizer = tokenizers.BertWordPieceTokenizer(pieces, lowercase=lower)._tokenizer
        else:
            raise NotFound(
                f"{folder} has neither {PIECES_FILE} nor {PIECE_LIST_FILE}: give the folder of a BERT"
            )
        # A published tokenizer may cut shorter than its encoder needs; our own folders have no such config.
        positions = read_json(folder / "config.json", optional=True).get("max_position_embeddings")
        return cls(tokenizer, max_length or positions or length or 512)

    def encode(self, texts: list[str]) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
        check_texts(texts)
        # JSON files may contain half a character (a lone surrogate), which the library refuses.
        whole = [
            text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8") for text in texts
        ]
        return _pad([row.ids for row in self.tokenizer.encode_batch_fast(whole)], self.pad_id)

    def spell(self, ids: list[int]) -> list[str]:
        return [self.tokenizer.id_to_token(i) for i in ids]

    def save(self, folder: Path) -> None:
        (Path(folder) / PIECES_FILE).write_text(self.tokenizer.to_str(), encoding="utf-8")


def _require_special(vocabulary: Mapping[str, int]) -> None:
    missing = [name for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]") if name not in vocabulary]
    if missing:
        raise SelhnError(f"this tokenizer has no {', '.join(missing)}: take the tokenizer of a BERT model")


def _number_of_ids(vocabulary: Mapping[str, Any]) -> int:
    """V. Every piece must have its own id, with few gaps, because tables over all ids are built."""
    ids = list(vocabulary.values())
    if not all(type(i) is int and 0 <= i < 16 * len(ids) for i in ids) or len(set(ids)) < len(ids):
        raise SelhnError(
            "the ids of this tokenizer are not 0, 1, 2, ...: every piece needs one, without large gaps"
        )
    return max(ids, default=-1) + 1


def _read_pieces(path: Path) -> tuple[str, Any]:
    """The parts of a tokenizer.json that we use, and its length limit. Other parts could run without end."""
    content = read_json(path)
    model, cut, decoder = (content.get(name) for name in ("model", "truncation", "decoder"))
    if (
        not isinstance(model, dict)
        or not isinstance(model.get("vocab"), dict)
        or (model.get("type", "WordPiece"), model.get("unk_token")) != ("WordPiece", "[UNK]")
    ):
        raise SelhnError(f"{path} holds no word pieces: take the tokenizer of a BERT model")
    _number_of_ids(model["vocab"])
    if model.get("max_input_chars_per_word", 100) not in range(1, 1001):
        raise SelhnError(f"max_input_chars_per_word in {path} is not from 1 to 1,000: BERT has 100")
    parts = [content.get("normalizer"), content.get("pre_tokenizer")]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            if part.get("type") not in _STEPS:
                raise SelhnError(
                    f"{path} has a step {part.get('type')!r}: those of a BERT are {', '.join(_STEPS)}"
                )
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    unused: dict[str, Any] = {"truncation": None, "padding": None, "post_processor": None}
    if not isinstance(decoder, dict) or decoder.get("type") != "WordPiece":
        unused["decoder"] = None
    return json.dumps({**content, **unused}), cut.get("max_length") if isinstance(cut, dict) else None


def has_tokenizer(folder: Path) -> bool:
    """Whether a tokenizer was saved in a folder."""
    return any((folder / file).exists() for file in TOKENIZER_FILES)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer that was saved in a folder."""
    folder = Path(path)
    if (folder / VOCABULARY_FILE).exists():
        return Vocabulary.from_json(folder / VOCABULARY_FILE)
    if (folder / PIECES_FILE).exists() or (folder / PIECE_LIST_FILE).exists():
        return WordPiece.load(folder)
    raise NotFound(
        f"no tokenizer in {folder}: it needs {VOCABULARY_FILE}, {PIECES_FILE} or {PIECE_LIST_FILE}"
    )


def check_texts(texts: list[str]) -> None:
    """Refuse one string instead of a list, something that is not a string, and an empty sentence."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        found = texts if isinstance(texts, str) else next(text for text in texts if not isinstance(text, str))
        raise SelhnError(
            f"texts must be a list of strings, got {found!r}: for one sentence, write [sentence]"
        )
    if len(texts) == 0:
        raise SelhnError("no texts: give at least one sentence")
    empty = next((i for i, text in enumerate(texts) if not text.strip()), None)
    if empty is not None:
        raise SelhnError(f"text {empty} is empty: a sentence needs at least one word")


def _pad(rows: list[list[int]], pad_id: int) -> tuple[Int[Tensor, "T N"], Bool[Tensor, "T N"]]:
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    tokens = torch.full(mask.shape, pad_id, dtype=torch.int64)
    tokens[mask] = torch.from_numpy(
        np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
    )
    return tokens, mask
