"""Pre-trained word vectors (GloVe, word2vec, fastText) as text: a word per line, then its numbers."""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from selhn.base.errors import Damaged, SelhnError
from selhn.base.untrusted import require_file

MAX_LINE_BYTES = 2**16
"""A line of 300 numbers is 3 kB."""


def read_word_vectors(
    path: Path | str, words: Sequence[str], dim: int
) -> tuple[Float[Tensor, "V d"], Bool[Tensor, " V"]]:
    """One row per word, and which words the file has; other words in the file are skipped.

    A first line of two numbers (word count and width), as word2vec writes it, is skipped.
    """
    path = Path(path)
    require_file(path)
    ids = {word: row for row, word in enumerate(words)}
    vectors, found = torch.zeros(len(words), dim), torch.zeros(len(words), dtype=torch.bool)
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            if len(line) == MAX_LINE_BYTES:
                raise Damaged(
                    f"{path}, line {number}, is too long: give word vectors as text, a word per line"
                )
            word, _, numbers = line.rstrip().decode("utf-8", "replace").partition(" ")
            is_header = number == 1 < dim and word.isdigit() and numbers.isdigit()
            row = None if is_header else ids.get(word)
            if row is not None and not found[row]:
                vectors[row], found[row] = _numbers(numbers, dim, f"{path}, line {number}"), True
    if not found.any():
        raise SelhnError(
            f"{path} has none of the {len(words)} words: give vectors in the language of the captions"
        )
    return vectors, found


def _numbers(text: str, dim: int, where: str) -> Float[Tensor, " d"]:
    values = text.split()
    if len(values) != dim:
        raise SelhnError(
            f"{where} has {len(values)} numbers but the model takes {dim}: set its width to that of the file"
        )
    try:
        vector = torch.tensor([float(value) for value in values])
    except ValueError:
        raise Damaged(f"{where} has something that is not a number: copy the file again") from None
    if not vector.isfinite().all():
        raise Damaged(f"{where} has a number that is not finite: copy the file again")
    return vector
