"""An index over towers of a folder: built, kept, searched and refused without a model of torch."""

import numpy as np
import pytest
from picture_cases import encoded, photo
from tower_cases import FEATURES, WIDTH, write_towers

from selhn.base.errors import Damaged, SelhnError
from selhn.pictures import Library
from selhn.search import Index, Item
from selhn.towers import open_towers


def items(number=4):
    draw = np.random.default_rng(0)
    return [
        Item(f"item{n}", vector=draw.normal(size=WIDTH).astype("f4"), captions=("a red ball",))
        for n in range(number)
    ]


def test_an_index_keeps_its_towers(tmp_path):
    towers = open_towers(write_towers(tmp_path / "towers"))
    index = Index.build(towers, items(), tmp_path / "i")
    assert (index.identity.model, index.identity.width) == (towers.digest, WIDTH)
    opened = Index.load(tmp_path / "i")
    assert (opened.towers.folder, opened.towers.digest) == (
        tmp_path / "i" / "models" / towers.digest,
        towers.digest,
    )
    hits = opened.search("a red ball", k=2)
    vector = towers.embed_texts(["a red ball"])[0]
    best = sorted(items(), key=lambda item: -float(item.vector @ vector))[:2]
    assert [hit.id for hit in hits] == [item.id for item in best]
    assert hits[0].score == pytest.approx(float(best[0].vector @ vector), abs=1e-6)
    assert index.search(["a red ball"], k=2) == [hits]
    again = write_towers(tmp_path / "other", digest="0" * 24)
    with pytest.raises(SelhnError, match="was written by another model"):
        Index.load(tmp_path / "i", open_towers(again))


def test_regions(tmp_path):
    towers = open_towers(write_towers(tmp_path / "towers", regions=True))
    regions = np.random.default_rng(0).random((2, 3, FEATURES), np.float32)
    index = Index.build(towers, [Item("a", regions[0]), Item("b", regions[1, :1])])
    vectors = towers.embed_regions(regions, np.array([[True] * 3, [True, False, False]]))
    scores = {hit.id: hit.score for hit in index.search(image=regions[0])}
    assert [scores["a"], scores["b"]] == pytest.approx((vectors @ vectors[0]).tolist(), abs=1e-5)
    with pytest.raises(SelhnError, match=rf"'c' have shape \(3, 5\): give \(M, {FEATURES}\)"):
        index.add([Item("c", regions[0, :, :5])])
    with pytest.raises(SelhnError, match="takes the regions of pictures.*--extractor NAME"):
        Library.create(None, towers)


def test_a_library_of_pictures(tmp_path):
    towers = open_towers(write_towers(tmp_path / "towers"))
    (tmp_path / "Pictures").mkdir()
    for number in range(5):
        (tmp_path / "Pictures" / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    library = Library.create(tmp_path / "i", towers)
    library.apply(library.plan(library.scan(tmp_path / "Pictures")), cache=tmp_path / "cache", quiet=True)
    assert library.index.about["features"] == towers.features
    opened = Library.open(tmp_path / "i")
    file = tmp_path / "Pictures" / "3.png"
    assert opened.index.search(opened.query(like=str(file)))[0].id != str(file), (
        "an item is not its own answer"
    )
    found = opened.index.search(image=opened.vector(file), k=1)[0]
    assert (found.id, found.score) == (str(file), pytest.approx(1, abs=1e-5))
    np.testing.assert_allclose(opened.vector(file), towers.embed_pictures([photo(3)])[0], atol=1e-5)


def test_a_digest_that_leads_elsewhere_is_refused(tmp_path):
    towers = open_towers(write_towers(tmp_path / "towers", digest="../../outside"))
    with pytest.raises(SelhnError, match="which is not one"):
        Index.build(towers, items(), tmp_path / "i")
    assert not (tmp_path / "outside").exists()


def test_what_the_towers_lack_is_one_error_and_not_one_per_picture(tmp_path):
    folder = write_towers(tmp_path / "towers")
    towers = open_towers(folder)
    (tmp_path / "Pictures").mkdir()
    for number in range(3):
        (tmp_path / "Pictures" / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    library = Library.create(None, towers)
    (folder / "image.onnx").write_bytes(b"damaged")
    with pytest.raises(Damaged, match=r"image\.onnx is not what was written"):
        library.apply(library.plan(library.scan(tmp_path / "Pictures")), cache=tmp_path / "cache", quiet=True)
    assert len(library.index) == 0
