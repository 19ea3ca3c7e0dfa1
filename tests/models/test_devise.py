import pytest
import torch
from model_cases import WORDS, make_batch, make_model

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.models import create_model, load_model
from selhn.text.word_vectors import read_word_vectors


def test_it_is_its_formula():
    model, batch = make_model("devise"), make_batch(4)
    scores = model(batch).scores
    for i in range(4):
        image = model.fc(batch.regions[i][batch.region_mask[i]].mean(0))
        for j in range(4):
            text = sum(model.words[token] for token in batch.tokens[j][batch.token_mask[j]])
            torch.testing.assert_close(scores[i, j], image @ text / image.norm() / text.norm())


def test_images_as_long_as_they_come():
    model, batch = make_model("devise", normalise_images=False), make_batch(4)
    images = model.encode_images(batch.regions, batch.region_mask)
    torch.testing.assert_close(images[0], model.fc(batch.regions[0]).mean(0))


def test_words_are_not_trained_and_marks_say_nothing():
    model = make_model("devise")
    assert {name for name, _ in model.named_parameters()} == {"fc.weight", "fc.bias"}
    words = model.words[4:39]
    torch.testing.assert_close(words.norm(dim=1), torch.ones(35))
    torch.testing.assert_close(
        model.embed_texts(["word3 word5", "word5 word3"]).diff(dim=0), torch.zeros(1, 16)
    )
    torch.testing.assert_close(model.embed_texts(["word3"])[0], model.words[WORDS.ids["word3"]])


def write_vectors(path, first="", last="1.5 -2 0.25"):
    path.write_text(f"{first}the 9 9 9\nword3 1 2 2\nnobody\nword5 {last}\nword3 7 7 7\n")
    return path


def test_word_vectors_of_a_file(tmp_path):
    for first in ("", "4 3\n"):
        vectors = write_vectors(tmp_path / "glove.txt", first)
        model = create_model("devise", tokenizer=WORDS, feature_dim=4, dim=3, word_vectors=vectors)
        assert model.settings["word_vectors"] is None
        assert model.words.any(1).sum() == 2, "a word that the file lacks says nothing"
        torch.testing.assert_close(
            model.embed_texts(["word3", "word3 word9"]), torch.tensor([[1.0, 2, 2]] * 2) / 3
        )
    vectors.unlink()
    model.save(tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model").words, model.words)


def test_a_first_line_of_two_numbers_is_no_word(tmp_path):
    (tmp_path / "word2vec.txt").write_text("2 3\n2 1 2 2\n")
    vectors, found = read_word_vectors(tmp_path / "word2vec.txt", ["2"], 3)
    assert vectors.tolist() == [[1, 2, 2]]
    assert found.all()


@pytest.mark.parametrize(
    ("last", "kind"),
    [("1 2", SelhnError), ("1 2 x", Damaged), ("1 2 nan", Damaged), ("1 2 3 " + " " * 70_000, Damaged)],
)
def test_files_that_are_no_word_vectors(tmp_path, last, kind):
    vectors = write_vectors(tmp_path / "glove.txt", last=last)
    with pytest.raises(kind):
        create_model("devise", tokenizer=WORDS, feature_dim=4, dim=3, word_vectors=vectors)


def test_word_vectors_that_do_not_fit(tmp_path):
    (tmp_path / "french.txt").write_text("chien 1 2 3\n")
    with pytest.raises(SelhnError, match="none of"):
        create_model("devise", tokenizer=WORDS, feature_dim=4, dim=3, word_vectors=tmp_path / "french.txt")
    with pytest.raises(NotFound):
        create_model("devise", tokenizer=WORDS, feature_dim=4, dim=3, word_vectors=tmp_path / "nowhere.txt")
    with pytest.raises(SelhnError, match="looked up"):
        create_model("devise", vocab_size=9, word_vectors=tmp_path / "french.txt")
