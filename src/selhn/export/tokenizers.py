"""The tokenizer of a model as the `tokenizer.json` of a towers folder."""

import json
from pathlib import Path
from typing import Any

from selhn.base.errors import SelhnError
from selhn.base.files import write_whole
from selhn.models import AbstractMatcher
from selhn.models.foreign import LibraryTokenizer
from selhn.text import Vocabulary, WordPiece
from selhn.towers import TextSide
from selhn.towers.tokenizer import read_tokenizer
from selhn.towers.words import word_tokenizer

TOKENIZER_FILE = "tokenizer.json"


def write_tokenizer(model: AbstractMatcher, folder: Path, side: dict[str, Any]) -> TextSide:
    """Write `tokenizer.json` and return how the network takes texts.

    Args:
        side: the rest of what is returned: file, inputs and output.
    """
    tokenizer = model.tokenizer
    assert tokenizer is not None  # a model without one has no vectors of sentences
    longest, is_padded, prefix = most_tokens(model), False, None
    if isinstance(tokenizer, Vocabulary):
        content = word_tokenizer(tokenizer.words)
    elif isinstance(tokenizer, WordPiece):
        content, prefix = tokenizer.tokenizer.to_str(), "##"
    else:
        fast = tokenizer.fast if isinstance(tokenizer, LibraryTokenizer) else None
        if fast is None or fast.tokenizer is None:
            raise SelhnError(
                f"{type(tokenizer).__name__} has no {TOKENIZER_FILE}, so other programs cannot read sentences as this "
                "model does: export a model with a Vocabulary, word pieces, or a fast tokenizer of transformers"
            )
        content, is_padded = fast.tokenizer.to_str(), fast.is_padded
    path = folder / TOKENIZER_FILE
    write_whole(path, _small(content))
    read_tokenizer(path)  # refuses steps that `Towers.open` would refuse
    return TextSide(
        **side,
        tokenizer=TOKENIZER_FILE,
        pad_id=tokenizer.pad_id,
        max_length=longest,
        pad_to=longest if is_padded else None,
        special=tuple(sorted(set(range(tokenizer.size)) - set(tokenizer.kinds.ordinary.tolist()))),
        inner_prefix=prefix,
    )


def most_tokens(model: AbstractMatcher) -> int | None:
    """The longest text in tokens, if there is a limit: of the tokenizer, or of the positions of a BERT."""
    tokenizer, bert = model.tokenizer, model.settings.get("bert")
    limits = [getattr(tokenizer, "max_length", None)]
    if isinstance(bert, dict):
        limits.append(int(bert["max_position_embeddings"]))
    if isinstance(tokenizer, LibraryTokenizer) and tokenizer.fast is not None:
        limits.append(tokenizer.fast.longest)
    return min((limit for limit in limits if limit is not None), default=None)


def _small(content: str) -> str:
    """Without what a towers folder says elsewhere, or does not use."""
    return json.dumps({**json.loads(content), "truncation": None, "padding": None}, ensure_ascii=False) + "\n"
