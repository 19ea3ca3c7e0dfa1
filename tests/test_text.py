import json
import random
import sys
import time
import unicodedata

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selhn.base.errors import Damaged, MissingExtra, NotFound, SelhnError
from selhn.data.batches import corrupt_words
from selhn.text import Tokenizer, Vocabulary, WordPiece, load_tokenizer, split_words

CAPTIONS = ["A dog jumps over a fence .", "a dog runs", "The dog's ball , a red one", "a dog isn't a cat"]
WORDS = Vocabulary(["<pad>", "<start>", "<end>", "<unk>", *(f"w{i}" for i in range(50)), "<mask>"])
PIECES = [
    "[PAD]",
    "[unused0]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "dog",
    "jump",
    "##s",
    "##ing",
    "two",
    ".",
    "cafe",
]


@pytest.fixture
def pieces_folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man, 20, runs.", "a man , 20 , runs ."),
        ("The dog doesn't bark; it can't.", "the dog does n't bark ; it ca n't ."),
        ("a man's best friend, we're told", "a man 's best friend , we 're told"),
        ("the dogs' toys at 5 o'clock", "the dogs ' toys at 5 o'clock"),
        ("a black-and-white T-shirt 3/4", "a black-and-white t-shirt 3/4"),
        ("$3,000.50 at 10:30!", "$ 3,000.50 at 10:30 !"),
        ('he said "stop" (twice)', "he said `` stop '' ( twice )"),
        ("wait... what -- no?", "wait ... what -- no ?"),
        ("the U.S. flag . Mr. Hill", "the u.s. flag . mr. hill"),
        ("I cannot, gonna", "i can not , gon na"),
        ("It is here. He runs", "it is here . he runs"),
        ("a 'stop' sign", "a ' stop ' sign"),
        ("  Spaces\tand\nlines ", "spaces and lines"),
        ("ein Café – mit Hündchen", "ein café – mit hündchen"),
        ("Cafe\u0301", "café"),
        ("don\u2019t", "do n't"),
        ("狗 在 跑", "狗 在 跑"),
    ],
)
def test_split_words(text, words):
    assert split_words(text) == words.split()


@given(st.text(max_size=60))
def test_no_letter_is_lost(text):
    words = split_words(text)
    letters = "".join(c for c in unicodedata.normalize("NFC", text.lower()) if c.isalnum())
    assert "".join(c for c in "".join(words) if c.isalnum()) == letters
    assert all(word and not any(c.isspace() for c in word) for word in words)


def test_build_counts_and_orders():
    vocabulary = Vocabulary.build(CAPTIONS, min_count=2)
    assert vocabulary.words == ["<pad>", "<start>", "<end>", "<unk>", "a", "dog", "<mask>"]
    assert vocabulary.size == 7
    assert (vocabulary.pad_id, vocabulary.mask_id) == (0, 6)
    shuffled = random.Random(0).sample(CAPTIONS, len(CAPTIONS))
    assert Vocabulary.build(shuffled, 1).words == Vocabulary.build(CAPTIONS, 1).words


def test_encode():
    tokens, mask = Vocabulary.build(CAPTIONS, 2).encode(["A dog", "a big dog barks"])
    assert tokens.tolist() == [[1, 4, 5, 2, 0, 0], [1, 4, 3, 5, 3, 2]]
    assert tokens.dtype == torch.int64
    assert torch.equal(mask, tokens != 0)


def test_long_texts_are_cut_only_if_asked():
    vocabulary = Vocabulary(WORDS.words, max_length=4)
    assert vocabulary.encode(["w0 w1 w2 w3"])[0].tolist() == [[1, 4, 5, 2]]
    assert WORDS.encode(["w0 " * 200])[0].shape == (1, 202)


def test_scan_json_and_back(tmp_path):
    words = ["<pad>", "<start>", "<end>", "<unk>", "dog", "café"]
    ids = {word: i for i, word in enumerate(words)}
    scan = {"word2idx": ids, "idx2word": {str(i): word for word, i in ids.items()}, "idx": 6}
    (tmp_path / "scan.json").write_text(json.dumps(scan))
    vocabulary = Vocabulary.from_json(tmp_path / "scan.json")
    assert vocabulary.words == words
    assert vocabulary.mask_id is None
    vocabulary.to_json(tmp_path / "ours.json")
    assert (tmp_path / "ours.json").read_text() == (tmp_path / "scan.json").read_text()
    with_mask = Vocabulary.from_json(tmp_path / "scan.json", add_mask=True)
    assert with_mask.words == [*words, "<mask>"]
    with_mask.to_json(tmp_path / "mask.json")
    assert Vocabulary.from_json(tmp_path / "mask.json", add_mask=True).size == 7


def test_saved_and_loaded(tmp_path):
    Vocabulary(WORDS.words, max_length=9).save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.words == WORDS.words
    assert loaded.max_length == 9
    assert isinstance(loaded, Tokenizer)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "JSON"), ("[]", "object"), ('{"word2idx": {"a": 0, "b": 2}}', "vocabulary")],
)
def test_damaged_vocabulary(tmp_path, content, message):
    (tmp_path / "vocabulary.json").write_text(content)
    with pytest.raises(Damaged, match=message):
        load_tokenizer(tmp_path)


def test_wrong_vocabularies(tmp_path):
    with pytest.raises(SelhnError, match="<pad>"):
        Vocabulary(["a", "dog"])
    with pytest.raises(SelhnError, match="dog"):
        Vocabulary([*WORDS.words[:4], "dog", "dog"])
    with pytest.raises(SelhnError, match="max_length"):
        Vocabulary(WORDS.words, max_length=2)
    with pytest.raises(SelhnError, match="min_count"):
        Vocabulary.build(["a dog"], min_count=4)
    with pytest.raises(NotFound):
        Vocabulary.from_json(tmp_path / "nowhere.json")
    with pytest.raises(NotFound):
        load_tokenizer(tmp_path)


def test_texts_that_cannot_be_encoded(as_a_user, pieces_folder):
    for tokenizer in (WORDS, WordPiece.load(pieces_folder)):
        with pytest.raises(SelhnError, match="text 1"):
            tokenizer.encode(["a dog", "  "])
        with pytest.raises(SelhnError, match="no texts"):
            tokenizer.encode([])
        with pytest.raises(SelhnError, match="a dog"):
            tokenizer.encode("a dog")
        with pytest.raises(SelhnError, match="None"):
            tokenizer.encode(["a dog", None])


def test_encoding_is_fast():
    captions = ["a man in a red shirt is riding a brown horse along the beach ."] * 20_000
    start = time.perf_counter()
    WORDS.encode(captions)
    assert time.perf_counter() - start < 5, "150,000 captions must take seconds"


def test_word_pieces(pieces_folder, tmp_path):
    pieces = WordPiece.load(pieces_folder)
    tokens, mask = pieces.encode(["Two dogs jumping .", "a CAFÉ cat"])
    assert tokens.tolist() == [[3, 11, 7, 9, 8, 10, 12, 4], [3, 6, 13, 2, 4, 0, 0, 0]]
    assert torch.equal(mask, tokens != 0)
    assert (pieces.size, pieces.pad_id, pieces.mask_id) == (14, 0, 5)
    assert isinstance(pieces, Tokenizer)
    assert pieces.spell(tokens[1].tolist())[:4] == ["[CLS]", "a", "cafe", "[UNK]"]
    (tmp_path / "saved").mkdir()
    pieces.save(tmp_path / "saved")
    assert torch.equal(
        load_tokenizer(tmp_path / "saved").encode(["Two dogs"])[0], pieces.encode(["Two dogs"])[0]
    )


def test_word_pieces_are_cut_at_the_positions_of_the_encoder(pieces_folder, tmp_path):
    assert WordPiece.load(pieces_folder).max_length == 512
    (pieces_folder / "config.json").write_text('{"max_position_embeddings": 6}')
    pieces = WordPiece.load(pieces_folder)
    assert pieces.encode(["a dog " * 9])[0].tolist() == [[3, 6, 7, 6, 7, 4]]
    assert WordPiece.load(pieces_folder, max_length=4).max_length == 4
    (tmp_path / "saved").mkdir()
    pieces.save(tmp_path / "saved")
    assert WordPiece.load(tmp_path / "saved").max_length == 6


def test_word_pieces_without_their_library_or_files(pieces_folder, monkeypatch):
    (pieces_folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\ndog")
    with pytest.raises(SelhnError, match="MASK"):
        WordPiece.load(pieces_folder)
    (pieces_folder / "vocab.txt").unlink()
    with pytest.raises(NotFound):
        WordPiece.load(pieces_folder)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[text\]"):
        WordPiece.load(pieces_folder)


def corrupt(texts, tokenizer, seed=0, share=0.2):
    tokens, mask = tokenizer.encode(texts)
    return tokens, mask, *corrupt_words(tokens, mask, tokenizer, share, torch.Generator().manual_seed(seed))


def test_shares_of_the_three_changes():
    words = [f"w{random.Random(i).randrange(50)}" for i in range(20)]
    tokens, mask, changed, kept = corrupt([" ".join(words)] * 2000, WORDS)
    total = 20 * 2000
    assert abs((changed == WORDS.mask_id).sum() / total - 0.10) < 0.01
    assert abs((mask.sum() - kept.sum()) / total - 0.08) < 0.01
    counts = torch.bincount(changed[kept], minlength=55)
    expected = torch.bincount(tokens[mask], minlength=55)
    # A replaced word is any of the 50: ids that the text lacks show how many were replaced.
    unseen = (expected == 0) & (torch.arange(55) > 3) & (torch.arange(55) < 54)
    assert abs(counts[unseen].sum() / unseen.sum() * 50 / total - 0.02) < 0.004
    assert not counts[[0, 3]].any(), "padding and <unk> are never put in"


@given(st.integers(0, 10_000), st.sampled_from([0.2, 1.0]))
def test_start_and_end_stay_and_no_hole_is_left(seed, share):
    lengths = [random.Random(seed + i).randrange(1, 9) for i in range(6)]
    tokens, mask, changed, kept = corrupt([" ".join(["w7"] * n) for n in lengths], WORDS, seed, share)
    assert changed.shape == tokens.shape
    assert (changed[:, 0] == 1).all()
    assert (changed[torch.arange(6), kept.sum(1) - 1] == 2).all()
    assert torch.equal(kept, torch.arange(tokens.shape[1]) < kept.sum(1, keepdim=True))
    assert (kept.sum(1) <= mask.sum(1)).all()
    assert not changed[~kept].any()
    if share == 1.0:
        assert not (changed[kept] == WORDS.ids["w7"]).sum() > kept.sum() / 4, (
            "hardly any word is left as it was"
        )


def test_what_is_kept_keeps_its_order():
    text = " ".join(f"w{i}" for i in range(40))
    _, _, changed, kept = corrupt([text] * 200, WORDS)
    for row, valid in zip(changed, kept, strict=True):
        ids = [i for i in row[valid].tolist() if i != WORDS.mask_id]
        rises = sum(a < b for a, b in zip(ids, ids[1:], strict=False))
        assert rises >= len(ids) - 1 - 2 * 5 - 1


def test_the_pieces_of_a_word_share_its_fate(pieces_folder):
    pieces = WordPiece.load(pieces_folder)
    _, _, changed, kept = corrupt(["dogs jumping"] * 3000, pieces, share=0.5)
    masked = changed == pieces.mask_id
    seen = {tuple(row[valid].tolist()) for row, valid in zip(masked, kept, strict=True)}
    whole = [(True, True), (False, False), ()]
    assert {(False, *first, *second, False) for first in whole for second in whole} >= seen
    assert not (changed[kept] == 1).any(), "[unused] pieces are never put in"


def test_no_share_no_change_and_a_vocabulary_without_a_mask():
    tokens, mask, changed, kept = corrupt(["w1 w2 w3", "w4"], WORDS, share=0.0)
    assert torch.equal(changed, tokens)
    assert torch.equal(kept, mask)
    with pytest.raises(SelhnError, match="<mask>"):
        corrupt(["w1"], Vocabulary(WORDS.words[:-1]))


def test_the_same_seed_changes_the_same_words():
    first, second = corrupt(["w1 w2 w3 w4"] * 50, WORDS, 3), corrupt(["w1 w2 w3 w4"] * 50, WORDS, 3)
    assert torch.equal(first[2], second[2])
    assert not torch.equal(first[2], corrupt(["w1 w2 w3 w4"] * 50, WORDS, 4)[2])


def test_tokens_are_spelled_for_people():
    words = Vocabulary(["<pad>", "<start>", "<end>", "<unk>", "a", "dog"])
    tokens, _ = words.encode(["A dog barks"])
    assert words.spell(tokens[0].tolist()) == ["<start>", "a", "dog", "<unk>", "<end>"]


def test_damaged_files_are_named(pieces_folder, tmp_path):
    (pieces_folder / "tokenizer.json").write_text("{")
    with pytest.raises(Damaged, match="tokenizer.json"):
        WordPiece.load(pieces_folder)
    (tmp_path / "v.json").write_text("[" * 100_000)
    with pytest.raises(Damaged, match="v.json"):
        Vocabulary.from_json(tmp_path / "v.json")


@pytest.mark.usefixtures("as_a_user")
def test_a_length_that_is_no_number():
    with pytest.raises(SelhnError):
        Vocabulary(["<pad>", "<start>", "<end>", "<unk>"], "x")


def test_half_a_character_is_no_word_piece(pieces_folder):
    tokens, mask = WordPiece.load(pieces_folder).encode(["a dog \ud800", "a dog"])
    assert tokens.shape == mask.shape


@pytest.mark.parametrize(
    "change",
    [
        {"model": None},
        {"model": {"type": "BPE"}},
        {"model": {"vocab": [1]}},
        {"model": {"unk_token": "dog"}},
        {"model": {"max_input_chars_per_word": 10**12}},
        {"vocab": {"dog": 2**32 - 1}},
        {"vocab": {"dog": -1}},
        {"vocab": {"dog": 0}},
        {"vocab": {"dog": [2]}},
        {"vocab": {"dog": "2"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Replace"}]}},
        {"pre_tokenizer": {"type": ["Split"]}},
        {"pre_tokenizer": {"type": "BertNormalizer"}},
        {"added_tokens": 3},
        {"truncation": {"max_length": -5}},
        {"truncation": {"max_length": 10**30}},
        {"truncation": {"max_length": "long"}},
    ],
)
@pytest.mark.usefixtures("as_a_user")
def test_a_strangers_word_pieces(pieces_folder, tmp_path, change):
    WordPiece.load(pieces_folder).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    own = content["model"]
    if "vocab" in change:
        content["model"] = {**own, "vocab": own["vocab"] | change["vocab"]}
    elif change.get("model"):
        content["model"] = own | change["model"]
    else:
        content |= change
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(SelhnError):
        WordPiece.load(tmp_path)


def test_what_a_file_adds_around_a_text_is_not_used(pieces_folder, tmp_path):
    own = WordPiece.load(pieces_folder)
    own.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    template = {"single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}], "pair": [], "special_tokens": {}}
    content["post_processor"] = {"type": "TemplateProcessing", **template}  # stops the process
    content["padding"] = {"strategy": {"Fixed": 10**10}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert torch.equal(WordPiece.load(tmp_path).encode(["a dog"])[0], own.encode(["a dog"])[0])


def test_a_strangers_list_of_pieces(pieces_folder):
    (pieces_folder / "tokenizer_config.json").write_text('{"do_lower_case": "yes"}')
    with pytest.raises(SelhnError, match="do_lower_case"):
        WordPiece.load(pieces_folder)
    (pieces_folder / "tokenizer_config.json").unlink()
    (pieces_folder / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(Damaged, match="line 2"):
        WordPiece.load(pieces_folder)
    (pieces_folder / "vocab.txt").write_text("[PAD]\n[CLS]")
    with pytest.raises(SelhnError, match="SEP"):
        WordPiece.load(pieces_folder)
