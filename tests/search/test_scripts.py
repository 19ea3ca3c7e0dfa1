import numpy as np
import pytest
from picture_cases import need_ready_model

from selhn.export.matcher_towers import MatcherTokenizer, towers_of
from selhn.search.encoding import can_read, known_scripts, scripts_of
from selhn.text import Vocabulary, WordPiece

LETTERS = ["а", "б", "в", "##а", "##б", "犬", "雪", "##雪"]


def pieces(words):
    tokenizers = pytest.importorskip("tokenizers")
    every = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    return WordPiece(
        tokenizers.BertWordPieceTokenizer({word: number for number, word in enumerate(every)})._tokenizer, 32
    )


def test_scripts_of_letters():
    assert scripts_of("a dog, 2 ＣＡＴＳ é!") == {"LATIN"}
    assert scripts_of("собака 犬") == {"CYRILLIC", "CJK"}
    assert scripts_of("2024 🎄") == frozenset()


def test_few_words_make_no_script():
    assert known_scripts([f"word{n}" for n in range(500)] + ["а", "б"]) == {"LATIN"}
    assert known_scripts(["dog", "собака"]) == {"LATIN", "CYRILLIC"}
    assert known_scripts([f"w{n}" for n in range(99_000)] + ["犬"] * 1000) == {"LATIN", "CJK"}


def test_a_tokenizer_that_can_only_spell_a_script():
    english = MatcherTokenizer(pieces([f"word{n}" for n in range(500)] + LETTERS))
    for text in ("word1", "ein Hund", "雪 word1", "2024"):
        assert can_read(english, text)
    for text in ("ааб", "雪", "犬 аа"):
        assert not can_read(english, text)


def test_words_that_are_known_or_not():
    assert can_read(MatcherTokenizer(Vocabulary.build(["a dog 雪"] * 4)), "雪")


def test_minilm_reads_english():
    need_ready_model()
    from selhn.models import load_model
    from selhn.search.encoding import encode_queries_of_text

    model = load_model("ready")
    texts = ["children playing in the snow", "雪 snow", "enfants dans la neige", ("snow " * 2000)[:10_000]]
    assert np.isfinite(encode_queries_of_text(towers_of(model), texts)).all()
    for text in (
        "雪の中で遊ぶ子供",
        "дети играют в снегу",
        "أطفال يلعبون",
        "παιδιά στο χιόνι",
        "눈 속의 아이들",
        "बर्फ में बच्चे",
    ):
        with pytest.raises(
            ValueError, match="the model has no words in the script of .*language that it has learnt"
        ):
            encode_queries_of_text(towers_of(model), ["a dog", text])
