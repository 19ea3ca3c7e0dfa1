"""Strings to tokens: a vocabulary of words, and the word pieces of BERT; vectors and counts of words from files."""

from pathlib import Path

from selhn.base.errors import NotFound
from selhn.text.tokenizer import Tokenizer, TokenKinds, check_texts
from selhn.text.vocabulary import FUNCTION_WORDS, VOCABULARY_FILE, Vocabulary, split_words
from selhn.text.word_pieces import PIECE_LIST_FILE, PIECES_FILE, WordPiece

__all__ = ["FUNCTION_WORDS", "PIECES_FILE", "TOKENIZER_FILES", "VOCABULARY_FILE", "TokenKinds", "Tokenizer"]
__all__ += ["Vocabulary", "WordPiece", "check_texts", "has_tokenizer", "load_tokenizer", "split_words"]

TOKENIZER_FILES = (VOCABULARY_FILE, PIECES_FILE)
"""The files that a tokenizer may be saved as."""


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
