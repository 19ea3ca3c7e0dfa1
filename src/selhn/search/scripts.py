"""Scripts: those in which a tokenizer has words, so that nobody is answered in one that it can only spell."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from selhn.text import Tokenizer

FEWEST, SHARE = 1000, 0.02
"""So many words, or such a share of all, make a script one that is known."""
_KNOWN: "WeakKeyDictionary[Tokenizer, frozenset[str]]" = WeakKeyDictionary()


def scripts_of(text: str) -> frozenset[str]:
    """The scripts of the letters in a text, by the names Unicode gives them: LATIN, CYRILLIC, CJK."""
    letters = {letter for letter in unicodedata.normalize("NFKC", text) if letter.isalpha()}
    return frozenset(unicodedata.name(letter, "UNKNOWN").split()[0] for letter in letters)


def known_scripts(words: Iterable[str]) -> frozenset[str]:
    """The scripts of enough words: a BERT for English has the single letters of many others too."""
    counts = Counter(script for word in words for script in scripts_of(word))
    enough = min(FEWEST, SHARE * counts.total())
    return frozenset(script for script, number in counts.items() if number >= enough)


def can_read(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text has a letter of a script that the tokenizer has words in, or no letters at all.

    A tokenizer without word pieces spells nothing: a word is known to it, or it is not.
    """
    kinds = tokenizer.kinds
    if not bool(kinds.inner.any()):
        return True
    if tokenizer not in _KNOWN:
        whole = kinds.ordinary[~kinds.inner[kinds.ordinary]].tolist()
        _KNOWN[tokenizer] = known_scripts(tokenizer.spell(whole))
    own = scripts_of(text)
    return not own or bool(own & _KNOWN[tokenizer])
