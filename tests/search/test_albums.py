"""Albums of an index in a folder: what is in them, and what they survive."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.export import towers_of
from selhn.search import Index
from selhn.search.albums import FAVOURITES


def names(index, where, **settings):
    return [record.id for record in index.records(where, **settings)]


@pytest.fixture
def ids(index):
    index.albums.change("Trip", add=index.ids()[3:6])
    index.albums.change(FAVOURITES, add=index.ids()[5:7])
    return index.ids()


def test_a_filter_finds_what_is_in_albums(index, ids, model):
    assert names(index, 'album = "Trip"') == ids[3:6]
    assert names(index, 'album = Trip and album = "Favourites"') == ids[5:6]
    assert names(index, {"album": ["Trip", "Favourites"]}) == ids[3:7]
    assert names(index, 'not album like "*i*"') == names(index, 'album != "Trip" and album != "Favourites"')
    assert {hit.id for hit in index.search("word3", k=20, where='album = "Trip"')} == set(ids[3:6])
    assert index.count('album = "Trip"') == 3
    index.albums.change("Trip", add=[ids[0], ids[4]], remove=[ids[3], "gone"])
    assert index.albums.all() == {"Trip": [ids[4], ids[5], ids[0]], "Favourites": ids[5:7]}
    assert names(Index.load(index.path, towers_of(model)), 'album = "Trip"') == [ids[0], *ids[4:6]], (
        "the order is that of the index"
    )
    index.albums.change("Trip", new_name="2019")
    assert index.count("album = 2019") == 3
    index.albums.delete("2019")
    assert list(index.albums.all()) == [FAVOURITES]
    assert len(index) == 20


def test_what_cannot_be_done_is_said(index, model):
    with pytest.raises(NotFound, match="no albums yet"):
        names(index, 'album = "Trip"')
    for wrong, words in (
        ("", "1 to 100"),
        ("a" * 101, "1 to 100"),
        ("a\nb", "printable"),
        (" a", "printable"),
        ("\ud800", "printable"),
    ):
        with pytest.raises(SelhnError, match=words):
            index.albums.change(wrong, add=index.ids()[:1])
    with pytest.raises(NotFound, match="no item 'nobody'"):
        index.albums.change("Trip", add=["nobody"])
    with pytest.raises(NotFound, match="there are no albums yet"):
        index.albums.change("Trip", remove=index.ids()[:1])
    index.albums.change("Trip", add=index.ids()[:1])
    index.albums.change("Home", add=index.ids()[:1])
    with pytest.raises(NotFound, match="no album 'Tripp': choose from Trip, Home"):
        names(index, "album = Tripp")
    with pytest.raises(NotFound, match="no album 'Tripp'"):
        index.albums.delete("Tripp")
    with pytest.raises(SelhnError, match="already"):
        index.albums.change("Trip", new_name="Home")
    assert Index.create(towers_of(model)).albums is None, "in memory there are none"


def test_a_picture_that_is_renamed_stays_in_its_albums(index, make_item):
    facts = {"bytes": 1234, "taken": "2019-06-14 15:03:22"}
    index.add([replace(make_item(30), id="a/old.jpg", metadata=facts)])
    index.albums.change("Trip", add=["a/old.jpg", index.ids()[0]])
    index.delete(["a/old.jpg"])
    assert index.count("album = Trip") == 1, "it is not in the index, and not forgotten"
    index.add([replace(make_item(30), id="b/new.jpg", metadata=facts)])
    assert index.albums.all()["Trip"] == ["b/new.jpg", index.ids()[0]]
    index.albums.change("Trip", remove=["b/new.jpg"])
    assert index.albums.all()["Trip"] == index.ids()[:1]


def test_albums_survive_another_index_in_their_place(index, ids, model, make_item):
    """`Index.build` replaces what is in the folder."""
    again = Index.build(towers_of(model), (make_item(number) for number in range(8)), index.path)
    assert again.albums.all() == {"Trip": ids[3:6], "Favourites": ids[5:7]}
    again.compact()
    index.refresh()
    assert index.count("album = Trip") == 3


def test_nobody_waits_for_the_index_and_nothing_is_lost(index, model):
    """While another process indexes pictures, and when several change albums at once."""
    others = [Index.load(index.path, towers_of(model)) for _ in range(4)]
    with index.writing(), ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: others[at % 4].albums.change("Trip", add=[index.ids()[at]]), range(12)))
    assert sorted(index.albums.all()["Trip"]) == sorted(index.ids()[:12])


def test_a_damaged_file_is_said_and_not_overwritten(index, ids):
    content = index.albums.path.read_bytes()
    for wrong in (content[:50], content.replace(b"Trip", b"Tric"), b'{"albums": 3}', b"\xff"):
        index.albums.path.write_bytes(wrong)
        for use in (
            index.albums.all,
            lambda: index.albums.change("Home", add=ids[:1]),
            lambda: index.count("album = 1"),
        ):
            with pytest.raises(Damaged, match="restore a copy"):
                use()
        assert index.albums.path.read_bytes() == wrong
        assert index.search("word3"), "all else works"
