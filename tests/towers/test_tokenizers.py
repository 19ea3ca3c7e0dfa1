"""The tokenizers of a towers folder cut texts as those of models do."""

import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_cases import write_bert

from selhn.text import Vocabulary, WordPiece
from selhn.text.vocabulary import split_words
from selhn.towers import TextSide
from selhn.towers.tokenizer import FileTokenizer
from selhn.towers.words import word_tokenizer

CUT = [
    "can't", "cannot", "gonna", "U.S.", "mr. ", "st. john", "...", "--", "''", "``", '"hi"', "don't", "3,000", "3.14",
    "a.b", "rock'n'roll", "it's-x", "n't", "'ve", "we'll", "o'clock", "ΟΔΟΣ", "ΟΔΟΣ.", "Σ", "A.", "b. ", "½.", "².",
    " ", "\n", "“q”",
    "lemme", "wanna", "x-ray", "a--b", "10:30", "s'", "'tis", "<start>", "<unk>", "İ", "ǅ", "e\u0301", "\x1c", "\x85",
]  # fmt: skip


def is_old(letter):
    """Newer versions of Unicode, which Python and the library may have at different times, are left out."""
    return unicodedata.ucd_3_2_0.category(letter) not in ("Cn", "Cs")


ODD = st.text(
    st.one_of(
        st.sampled_from("abnt.,:;'\"`-_ \n\t0123“”’ΑΣσ«»(){}[]<>!?%/é\u0301\u00a0²½"),
        st.characters().filter(is_old),
    ),
    max_size=30,
)
TEXTS = st.one_of(ODD, st.lists(st.sampled_from(CUT), max_size=8).map("".join)).filter(str.strip)


def of_words(words, tmp_path, **text):
    (tmp_path / "tokenizer.json").write_text(word_tokenizer(words), encoding="utf-8")
    return FileTokenizer(tmp_path / "tokenizer.json", side(**text))


def side(**text):
    return TextSide("text.onnx", ("tokens", "token_mask"), "text_vector", **text)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("words")


@given(texts=st.lists(TEXTS, min_size=1, max_size=5), most=st.sampled_from([None, 3, 7]))
def test_whole_words_are_those_of_the_vocabulary(shared, texts, most):
    # With every second word of these texts known, both see where words begin and end.
    known = sorted({word for text in texts for word in split_words(text)})[::2]
    vocabulary = Vocabulary(["<pad>", "<start>", "<end>", "<unk>", *known, "<mask>"], most)
    tokenizer = of_words(vocabulary.words, shared, max_length=most)
    for found, wanted in zip(tokenizer.encode(texts), vocabulary.encode(texts), strict=True):
        assert np.array_equal(found, wanted.numpy())
    assert tokenizer.size == vocabulary.size


@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_word_pieces_are_those_of_the_model(shared, texts):
    if not (shared / "bert").exists():
        write_bert(shared / "bert")
        (shared / "pieces").mkdir()
        WordPiece.load(shared / "bert", 16).save(shared / "pieces")
    pieces = WordPiece.load(shared / "pieces", 16)
    special = sorted(set(range(pieces.size)) - set(pieces.kinds.ordinary.tolist()))
    text = side(pad_id=pieces.pad_id, max_length=16, special=tuple(special), inner_prefix="##")
    tokenizer = FileTokenizer(shared / "pieces" / "tokenizer.json", text)
    for found, wanted in zip(tokenizer.encode(texts), pieces.encode(texts), strict=True):
        assert np.array_equal(found, wanted.numpy())
    assert tokenizer.ordinary.tolist() == pieces.kinds.ordinary.tolist()
    assert tokenizer.inner.tolist() == pieces.kinds.inner.tolist()


def test_half_a_letter(tmp_path):
    tokenizer = of_words(["<pad>", "<start>", "<end>", "<unk>", "dog", "?"], tmp_path)
    assert tokenizer.encode(["dog \ud800"])[0].tolist() == [[1, 4, 5, 2]]


def test_padding_to_one_length_counts_as_text(tmp_path):
    words = ["<pad>", "<start>", "<end>", "<unk>", "dog"]
    tokens, mask = of_words(words, tmp_path, pad_to=5).encode(["dog", "dog dog dog dog dog"])
    assert tokens.tolist() == [[1, 4, 2, 0, 0], [1, 4, 4, 4, 2]]
    assert mask.all()


AROUND = {"sep": ["b", 2], "cls": ["a", 1]}
ROBERTA = {"type": "RobertaProcessing", **AROUND, "trim_offsets": True, "add_prefix_space": True}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {"x": {"id": "x", "ids": [1, 2], "tokens": ["a", "b"]}},
}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
SEVERAL = {"type": "Sequence", "processors": [BYTES, {"type": "BertProcessing", **AROUND}]}


@pytest.mark.parametrize(
    ("processor", "ids"),
    [(None, [4]), (BYTES, [4]), (ROBERTA, [1, 4, 2]), (TEMPLATE, [1, 2, 4]), (SEVERAL, [1, 4, 2])],
)
def test_what_is_put_around_a_text(tmp_path, processor, ids):
    content = json.loads(word_tokenizer(["<pad>", "<start>", "<end>", "<unk>", "dog"]))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "post_processor": processor}))
    assert FileTokenizer(tmp_path / "tokenizer.json", side()).rows(["dog"]) == [ids]
