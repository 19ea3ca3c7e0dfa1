import torch
from model_cases import make_model

from selhn.data import load_data
from selhn.export.clip_retrieval import Embedded, embeddings_of_index, embeddings_of_split, joined
from selhn.search import Index, Item, Record
from selhn.text import Vocabulary


def three():
    records = [Record("a", ("one", "two"), {}), Record("b", (), {}), Record("c", ("three",), {})]
    return Embedded(records, torch.eye(3), torch.arange(9.0).reshape(3, 3))


def test_a_row_an_image():
    rows = three().rows("image")
    assert [record.id for record in rows.records] == ["a", "b", "c"]
    assert rows.captions == ["one", "", "three"]
    assert rows.texts is None  # b has none


def test_a_row_a_caption():
    rows = three().rows("pair")
    assert [record.id for record in rows.records] == ["a", "a", "c"]
    assert rows.captions == ["one", "two", "three"]
    assert torch.equal(rows.images, torch.eye(3)[[0, 0, 2]])
    assert torch.equal(rows.texts, torch.arange(9.0).reshape(3, 3))


def test_joined_rows_have_texts_only_where_all_have():
    whole = three().rows("pair")
    assert joined([whole, whole]).texts.shape == (6, 3)
    both = joined([whole, three().rows("image")])
    assert both.texts is None
    assert len(both.records) == len(both.images) == len(both.captions) == 6


def test_an_index_without_what_was_deleted():
    model, index = make_model("rvse"), None
    index = Index.create(model)
    items = [Item(f"i{n}", torch.rand(2, 12), None, tuple(f"word{n} word{m}" for m in range(n % 3))) for n in range(7)]
    index.add(items[:4])
    index.add(items[4:])
    index.delete(["i1", "i5"])
    found = list(embeddings_of_index(index))
    assert [record.id for part in found for record in part.records] == ["i0", "i2", "i3", "i4", "i6"]
    for part in found:
        rows = part.rows("pair")
        for record, image, caption, text in zip(rows.records, rows.images, rows.captions, rows.texts):
            with torch.no_grad():
                wanted = model.encode_texts(*model.tokenize([caption]))[0]
                own = model.encode_images(items[int(record.id[1:])].regions[None], torch.ones(1, 2, dtype=torch.bool))[
                    0
                ]
            assert torch.allclose(text, wanted, atol=1e-5)
            assert torch.allclose(image, own, atol=1e-5)


def test_a_split_is_encoded_in_the_order_of_its_images():
    split = load_data("world", images=40).test
    words = Vocabulary.build(split.captions, min_count=1)
    model = make_model("vse_fc", tokenizer=words, feature_dim=split.features.width)
    (part,) = embeddings_of_split(model, split)
    rows = part.rows("pair")
    row = len(rows.captions) // 2
    with torch.no_grad():
        assert torch.allclose(rows.texts[row], model.encode_texts(*model.tokenize([rows.captions[row]]))[0], atol=1e-5)
    own = {split.image_names[image]: set() for image in range(split.num_images)}
    for text, image in enumerate(split.image_of_text.tolist()):
        own[split.image_names[image]].add(split.captions[text])
    assert {record.id: set(record.captions) for record in part.records} == own
