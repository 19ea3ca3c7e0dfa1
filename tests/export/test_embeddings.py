import torch
from model_cases import make_model

from selhn.data import load_data
from selhn.export import towers_of
from selhn.export.clip_retrieval import Embedded, embeddings_of_index, embeddings_of_split
from selhn.search import Index, Item, Record
from selhn.text import Vocabulary


def three():
    records = [Record("a", ("one", "two"), {}), Record("b", (), {}), Record("c", ("three",), {})]
    return Embedded(records, torch.eye(3), torch.arange(9.0).reshape(3, 3))


def test_a_row_an_image():
    records, images, captions, texts = zip(*three().rows("image"))
    assert [record.id for record in records] == ["a", "b", "c"]
    assert captions == ("one", "", "three")
    assert [image.tolist() for image in images] == torch.eye(3).tolist()
    assert texts[0].tolist() == [0, 1, 2]
    assert texts[1] is None  # b has none
    assert texts[2].tolist() == [6, 7, 8]


def test_a_row_a_caption():
    records, images, captions, texts = zip(*three().rows("pair"))
    assert [record.id for record in records] == ["a", "a", "c"]
    assert captions == ("one", "two", "three")
    assert [image.tolist() for image in images] == torch.eye(3)[[0, 0, 2]].tolist()
    assert [text.tolist() for text in texts] == torch.arange(9.0).reshape(3, 3).tolist()


def test_an_index_without_what_was_deleted():
    model, index = make_model("rvse"), None
    index = Index.create(towers_of(model))
    items = [
        Item(f"i{n}", torch.rand(2, 12), None, tuple(f"word{n} word{m}" for m in range(n % 3)))
        for n in range(7)
    ]
    index.add(items[:4])
    index.add(items[4:])
    index.delete(["i1", "i5"])
    found = list(embeddings_of_index(index))
    assert [record.id for part in found for record in part.records] == ["i0", "i2", "i3", "i4", "i6"]
    for part in found:
        for record, image, caption, text in part.rows("pair"):
            with torch.no_grad():
                wanted = model.encode_texts(*model.tokenize([caption]))[0]
                own = model.encode_images(
                    items[int(record.id[1:])].regions[None], torch.ones(1, 2, dtype=torch.bool)
                )[0]
            assert torch.allclose(torch.from_numpy(text), wanted, atol=1e-5)
            assert torch.allclose(torch.from_numpy(image), own, atol=1e-5)


def test_a_split_is_encoded_in_the_order_of_its_images():
    split = load_data("world", images=40).test
    words = Vocabulary.build(split.captions, min_count=1)
    model = make_model("vse_fc", tokenizer=words, feature_dim=split.features.width)
    (part,) = embeddings_of_split(model, split)
    rows = list(part.rows("pair"))
    row = rows[len(rows) // 2]
    with torch.no_grad():
        wanted = model.encode_texts(*model.tokenize([row.caption]))[0]
    assert torch.allclose(torch.from_numpy(row.text), wanted, atol=1e-5)
    own = {split.image_names[image]: set() for image in range(split.num_images)}
    for text, image in enumerate(split.image_of_text.tolist()):
        own[split.image_names[image]].add(split.captions[text])
    assert {record.id: set(record.captions) for record in part.records} == own
