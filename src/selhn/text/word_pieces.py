"""The word pieces of BERT, from files that others wrote."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from selhn.base.errors import Damaged, MissingExtra, NotFound, SelhnError, pip_install
from selhn.base.files import write_whole
from selhn.base.names import require_kind
from selhn.base.untrusted import read_json, read_lines
from selhn.text.tokenizer import TokenKinds, decodable, padded

PIECES_FILE, PIECE_LIST_FILE = "tokenizer.json", "vocab.txt"
_STEPS = (
    "Sequence", "BertNormalizer", "Lowercase", "StripAccents", "Strip", "NFC", "NFD", "NFKC", "NFKD",
    "BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits",
)  # fmt: skip
"""Allowed steps before a text is cut into pieces, by their `tokenizers` names; none takes a regex."""


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
        rows = self.tokenizer.encode_batch_fast(decodable(texts))
        return padded([row.ids for row in rows], self.pad_id)

    def spell(self, ids: list[int]) -> list[str]:
        return [self.tokenizer.id_to_token(i) for i in ids]

    def save(self, folder: Path) -> None:
        write_whole(Path(folder) / PIECES_FILE, self.tokenizer.to_str())


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
