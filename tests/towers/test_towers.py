import json
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from picture_cases import photo
from tower_cases import BOXES, FEATURES, SIDE, SPECIAL, WIDTH, WORDS, change_description, write_towers

from selhn.base import names
from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.towers import AbstractTowers, Description, Towers, open_towers


def cutoff():
    return {
        "counts": {"dog": 3},
        "offset": [1, 2, 3, 4.5],
        "slope": [0, 0, 0, 1e-3],
        "learnt": {"data": "tiny"},
    }


def test_pictures_and_sentences_become_vectors(folder):
    towers = Towers.open(folder)
    assert isinstance(towers, AbstractTowers)
    assert (towers.name, towers.digest, towers.width, towers.source) == ("tiny", "0123" * 6, WIDTH, None)
    assert towers.is_product
    assert towers.features == "tiny pixels"
    assert towers.resized == (SIDE, SIDE)
    texts = towers.embed_texts(["a red ball", "the dog in the snow", "a red ball"])
    images = towers.embed_pictures([photo(1), photo(2, (90, 20))])
    for vectors, number in ((texts, 3), (images, 2)):
        assert vectors.shape == (number, WIDTH)
        assert vectors.dtype == np.float32
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.array_equal(texts[0], texts[2])
    assert np.array_equal(images[0], towers.embed_prepared([towers.prepare(photo(1))])[0])
    assert np.array_equal(towers.score(images, texts), images @ texts.T)


def test_nothing_has_no_vectors(folder):
    towers = Towers.open(folder)
    assert towers.embed_texts([]).shape == towers.embed_pictures([]).shape == (0, WIDTH)


def test_parts_of_a_picture(folder, tmp_path):
    towers = Towers.open(folder)
    prepared = towers.prepare(photo(1))
    vectors, boxes = towers.embed_parts(prepared)
    whole = towers.embed_prepared([prepared])[0]
    assert np.array_equal(vectors, np.stack([whole, -whole]))
    assert np.array_equal(boxes, np.array(BOXES, "f4"))
    plain = Towers.open(write_towers(tmp_path / "plain"))
    assert plain.embed_parts(plain.prepare(photo(1))) is None


def test_towers_of_regions(tmp_path, trusted):
    towers = Towers.open(write_towers(tmp_path / "towers", regions=True))
    regions = np.random.default_rng(0).normal(size=(3, 5, FEATURES)).astype("f4")
    mask = np.array([[True] * 5, [True, False, True, False, False], [True] * 5])
    vectors = towers.embed_regions(regions, mask)
    alone = towers.embed_regions(regions[1:2, [0, 2]], np.ones((1, 2), bool))
    assert np.allclose(vectors[1], alone[0], atol=1e-6)
    assert towers.embed_regions(regions[:0], mask[:0]).shape == (0, WIDTH)
    assert towers.features == ""
    assert towers.resized is None
    with pytest.raises(SelhnError, match="shape"):
        towers.embed_regions(regions[..., :2], mask)
    for call in (towers.prepare, lambda picture: towers.embed_prepared([picture])):
        with pytest.raises(SelhnError, match="regions"):
            call(photo(1))


def test_towers_of_pictures_take_no_regions(folder):
    with pytest.raises(SelhnError, match="takes pictures"):
        Towers.open(folder).embed_regions(np.zeros((1, 1, FEATURES), "f4"), np.ones((1, 1), bool))


def test_order_scores(tmp_path, trusted):
    towers = Towers.open(write_towers(tmp_path / "towers", score="order"))
    assert not towers.is_product
    draw = np.random.default_rng(0)
    images, texts = draw.normal(size=(7, WIDTH)).astype("f4"), draw.normal(size=(5, WIDTH)).astype("f4")
    wanted = [[-np.linalg.norm(np.maximum(0, text - image)) for text in texts] for image in images]
    assert np.allclose(towers.score(images, texts), wanted, atol=1e-6)
    assert towers.score(images[:0], texts).shape == (0, 5)


def test_the_cut_off_and_the_bank(folder, tmp_path, trusted):
    towers = Towers.open(folder)
    assert towers.cutoff is None
    assert np.array_equal(towers.bank, np.eye(3, WIDTH))
    assert isinstance(towers.bank, np.memmap)
    learnt = Towers.open(write_towers(tmp_path / "learnt", cutoff=cutoff()))
    assert json.loads(json.dumps(vars(learnt.cutoff))) == cutoff()
    assert learnt.bank is None


def test_saving_copies_and_compares(folder, tmp_path):
    towers = Towers.open(folder)
    towers.save(tmp_path / "copy")
    copy = Towers.open(tmp_path / "copy")
    assert copy.description == towers.description
    assert np.array_equal(copy.embed_texts(["a dog"]), towers.embed_texts(["a dog"]))
    (folder / "text.onnx").write_bytes(b"changed")
    with pytest.raises(Damaged, match="checksum"):
        towers.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(SelhnError, match="exists"):
        towers.save(tmp_path / "copy")


def test_a_file_is_compared_when_it_is_needed(folder):
    towers = Towers.open(folder)
    (folder / "image.onnx").write_bytes(b"changed")
    assert towers.embed_texts(["a dog"]).shape == (1, WIDTH)
    with pytest.raises(Damaged, match="checksum"):
        towers.embed_pictures([photo(1)])


def test_the_description_says_what_was_written(folder):
    description = Description.read(folder)
    assert Description.read(folder).content() == description.content()
    with pytest.raises(NotFound, match="selhn export towers"):
        Description.read(folder / "none")


@given(
    texts=st.lists(
        st.lists(st.sampled_from([*WORDS[4:12], "zebra", "Snow!"]), min_size=1, max_size=9),
        min_size=1,
        max_size=9,
    )
)
def test_a_text_alone_equals_the_text_in_a_batch(shared, texts):
    sentences = [" ".join(words) for words in texts]
    together = shared.embed_texts(sentences)
    for sentence, vector in zip(sentences, together, strict=True):
        assert np.allclose(shared.embed_texts([sentence])[0], vector, atol=1e-6)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = write_towers(tmp_path_factory.mktemp("shared") / "towers")
    return Towers(folder, Description.read(folder))


def test_many_texts_are_split_and_keep_their_order(shared, monkeypatch):
    monkeypatch.setattr("selhn.towers.towers.TOKENS_AT_ONCE", 7)
    texts = ["dog " * (1 + number % 5) + "snow" for number in range(23)]
    wanted = np.concatenate([shared.embed_texts([text]) for text in texts])
    assert np.allclose(shared.embed_texts(texts), wanted, atol=1e-6)


@pytest.mark.parametrize("wrong", ["a dog", ["a dog", "  "]])
def test_what_is_no_list_of_sentences_is_refused(shared, wrong):
    with pytest.raises(SelhnError):
        shared.embed_texts(wrong)


def test_threads_share_a_network(shared):
    wanted, found = shared.embed_pictures([photo(n) for n in range(6)]), {}

    def embed(number):
        found[number] = shared.embed_pictures([photo(number)])[0]

    threads = [threading.Thread(target=embed, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[number], wanted[number]) for number in range(6))


def test_open_towers_by_name(folder, monkeypatch):
    monkeypatch.setitem(names.NAMED_TOWERS, "library", "tower_cases:named")
    monkeypatch.setattr("tower_cases.named", lambda name: Towers.open(folder), raising=False)
    assert open_towers("library").name == "tiny"
    assert open_towers(folder).name == "tiny"
    with pytest.raises(NotFound):
        open_towers("nothing of that name")


def test_towers_need_no_torch(folder):
    program = """
import sys
class NoTorch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("torch must not be imported here")
sys.meta_path.insert(0, NoTorch())
from PIL import Image
from selhn.towers import open_towers
towers = open_towers(sys.argv[1])
towers.embed_texts(["a red ball"]), towers.embed_pictures([Image.new("RGB", (30, 20))]), towers.bank, towers.cutoff
towers.save(__import__("pathlib").Path(sys.argv[1] + "2"))
print("torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_ids_of_words_and_pieces(shared):
    tokenizer = shared.tokenizer
    assert tokenizer.size == len(WORDS)
    assert tokenizer.ordinary.tolist() == [i for i in range(len(WORDS)) if i not in SPECIAL]
    assert not tokenizer.inner.any()
    tokens, mask = tokenizer.encode(["the dog's", "zebra"])
    assert tokens.tolist() == [[1, 9, 7, 11, 2], [1, 3, 2, 0, 0]]
    assert mask.sum(1).tolist() == [5, 3]
    assert tokenizer.spell([4, 12]) == ["a", "<mask>"]


def test_another_digest_is_another_folder(folder):
    change_description(folder, lambda content: content.update(name="renamed"))
    assert Towers.open(folder).name == "renamed"
