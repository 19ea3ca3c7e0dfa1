"""Whole words by a `tokenizer.json`: the steps by which `selhn.text.Vocabulary` cuts captions, for `tokenizers`.

Its regular expressions are those of Oniguruma, whose classes of letters differ from Python's: they are written out.
"""

import json
from collections.abc import Sequence
from typing import Any

_WORD = r"[\p{L}\p{N}_]"
_SPACE = r"\s\x{1c}-\x{1f}"
_NOT = rf"(?!{_WORD})"
_LETTER = rf"""[^{_SPACE}.,:;@#$%&?!()\[\]{{}}<>"“”«»'`-]"""
_ENDING = r"(?:s|m|d|ll|re|ve)(?![\p{L}\p{N}_-])"
WORDS = "|".join(
    (
        r"\.{2,}|--|``|''",
        rf"n't{_NOT}|'{_ENDING}",
        rf"(?<!{_WORD})(?:can(?=not{_NOT})|gon(?=na{_NOT})|wan(?=na{_NOT})|got(?=ta{_NOT})|gim(?=me{_NOT})|lem(?=me{_NOT}))",
        rf"(?:(?!\p{{Nd}})[\p{{L}}\p{{N}}]\.)+(?=[{_SPACE}]+[^{_SPACE}])",
        rf"(?<!{_WORD})(?:mr|mrs|ms|dr|st|jr|sr|vs)\.(?=[{_SPACE}]+[^{_SPACE}])",
        rf"(?:(?!n't{_NOT})(?:{_LETTER}|-(?!-)|[.,:](?=\p{{Nd}})|\.(?={_WORD})|(?<={_WORD})'(?!{_ENDING})(?={_WORD})))+",
        rf"[^{_SPACE}]",
    )
)
"""Words, endings of contractions and single signs; see `selhn.text.vocabulary`."""
OPENING_QUOTE = rf'(?:(?<=[{_SPACE}(\[{{<])|(?<!.))["“]'
FINAL_SIGMA = r"\p{Cased}\p{Case_Ignorable}*\KΣ(?!\p{Case_Ignorable}*\p{Cased})"
"""`str.lower` of Python writes a sigma at the end of a word in another way."""
_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
PATTERNS = {
    WORDS,
    OPENING_QUOTE,
    FINAL_SIGMA,
    _CLIP,
    rf"<\|startoftext\|>|<\|endoftext\|>|{_CLIP}",
    r"\s+",
    " {2,}",
}
"""The regular expressions that a stranger's tokenizer may have: ours, and those of CLIP and SigLIP."""


def word_tokenizer(words: Sequence[str]) -> str:
    """The `tokenizer.json` of a vocabulary, whose words 1 to 3 are start, end and unknown."""
    _, start, end, unknown = words[:4]
    steps = [
        _replace({"Regex": FINAL_SIGMA}, "ς"),
        {"type": "Lowercase"},
        {"type": "NFC"},
        _replace({"String": "’"}, "'"),
        _replace({"String": "”"}, '"'),
        _replace({"Regex": OPENING_QUOTE}, " `` "),
        _replace({"String": '"'}, " '' "),
    ]
    content: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": WORDS},
            "behavior": "Removed",
            "invert": True,
        },
        "post_processor": {"type": "BertProcessing", "cls": [start, 1], "sep": [end, 2]},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": unknown,
        },
    }
    return json.dumps(content, ensure_ascii=False)


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}
