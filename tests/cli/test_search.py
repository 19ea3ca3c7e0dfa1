import contextlib
import io
import json
import os
from pathlib import Path

import pytest
import torch
from picture_cases import TinyBackbone, encoded, photo, stand_in
from PIL import Image, ImageFont

from selhn.base.errors import NotFound, SelhnError
from selhn.cli import main
from selhn.cli.answers import answer_tiles, answers
from selhn.cli.index import index as index_command
from selhn.cli.index import search
from selhn.cli.search import DEFAULT_INDEX, fill_index, find_hits, index_path
from selhn.data import import_data, load_data
from selhn.export import towers_of
from selhn.models import create_model, load_model
from selhn.pictures import Extractor, Library
from selhn.pictures.how_far import HowFarFile
from selhn.pictures.picture_folders import default_index, found_index
from selhn.search import Hit, Index, Query
from selhn.text import Vocabulary


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The folder of a small world."""
    return str(import_data("world", tmp_path_factory.mktemp("data") / "world", images=100))


@pytest.fixture(scope="module")
def saved(tmp_path_factory, world):
    folder = tmp_path_factory.mktemp("model") / "rvse"
    data = load_data(world)
    torch.manual_seed(0)
    words = Vocabulary.build(data.dev.captions)
    create_model("rvse", tokenizer=words, feature_dim=data.feature_dim, dim=8).save(folder)
    return folder


def named(path):
    return {"uri": path} if isinstance(path, str) else {"folder": path}


def ask(words, path=None, **options):
    """The answers of `selhn search`."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        search(words, **named(path), as_json=True, **options)
    return [Hit(**{**hit, "captions": tuple(hit["captions"])}) for hit in json.loads(said.getvalue())]


def change_index(path, delete=None, **options):
    """What `selhn index` says after a change."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        index_command(**named(path), delete=delete, **options)
    return said.getvalue().rstrip()


def test_filling_asking_changing(saved, world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = fill_index(world, DEFAULT_INDEX, saved, "dev", "int8")
    assert said == str(Index.load(DEFAULT_INDEX))
    assert "8 numbers each in int8, by rvse" in said
    number = len(Index.load(DEFAULT_INDEX))
    hits = ask(["a red ball"], DEFAULT_INDEX, k=2)
    assert [hit.metadata for hit in hits] == [{"split": "dev"}] * 2
    assert ask([str(tmp_path / DEFAULT_INDEX), "a red ball"], Path("elsewhere"), k=2) == hits
    assert hits[0].id not in {hit.id for hit in ask([], DEFAULT_INDEX, like=hits[0].id)}
    assert ask([str(tmp_path / DEFAULT_INDEX)], Path("elsewhere"), like=hits[0].id), (
        "an index alone is no word"
    )
    assert ask(["a red ball"], DEFAULT_INDEX, where="split = test") == []
    said = change_index(DEFAULT_INDEX, [hits[0].id], compact=True, check=True, approximate="exact")
    assert said.startswith(f"{DEFAULT_INDEX}: {number - 1:,} images")
    assert said.endswith("; every file matches its checksum")


def test_indexing_that_was_stopped_continues(saved, world, tmp_path):
    fill_index(world, tmp_path / "i", saved, "dev")
    index = Index.load(tmp_path / "i")
    every = index.ids()
    index.delete(every[10:])
    fill_index(world, tmp_path / "i", None, "dev")
    assert Index.load(tmp_path / "i").ids() == every


def test_what_is_missing(saved, tmp_path):
    for path in (Index.create(towers_of(load_model(saved)), tmp_path / "made").path, tmp_path / "none"):
        with pytest.raises(ValueError, match="nothing to index: name a folder of pictures"):
            fill_index(None, path, None)
    with pytest.raises(
        ValueError, match="was trained on: name a folder of pictures or a data set, `selhn index"
    ):
        fill_index(None, tmp_path / "none", saved)
    with pytest.raises(ValueError, match="there is no index .* yet: name a run"):
        fill_index("world", tmp_path / "none", None)
    with pytest.raises(ValueError, match="there is no index .*: make one with `selhn index ~/Pictures`"):
        ask(["a dog"], tmp_path / "none")
    with pytest.raises(ValueError, match="write `selhn search"):
        ask([], Index.create(towers_of(load_model(saved)), tmp_path / "made2").path)
    with pytest.raises(ValueError, match="--captions is for a folder of pictures, and world is not one"):
        fill_index("world", tmp_path / "none", saved, captions=tmp_path)
    with pytest.raises(
        ValueError, match="--dry-run is for a folder of pictures, and the data of a run is not one"
    ):
        fill_index(None, tmp_path / "none", saved, dry_run=True)


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """A folder of pictures, and small models in place of the ready ones."""

    def small_model():
        torch.manual_seed(0)
        return create_model(
            "rvse", tokenizer=Vocabulary.build(["a red ball"], 1), feature_dim=4, dim=8
        ).eval()

    stand_in(small_model, lambda: Extractor(TinyBackbone()), monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Pictures").mkdir()
    for number in range(5):
        (tmp_path / "Pictures" / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    return tmp_path / "Pictures"


def test_pictures_without_any_other_argument(pictures, tmp_path):
    assert found_index(None) == DEFAULT_INDEX
    assert fill_index("Pictures", None, None, dry_run=True).startswith("5 pictures to add")
    assert not default_index().exists()
    said = fill_index("Pictures", None, None)
    assert "5 pictures added" in said
    assert f"{default_index()}: 5 images, 0 texts" in said
    assert 'Search it: selhn search "' in said
    assert fill_index("Pictures", None, None, dry_run=True).startswith("0 pictures to add")
    assert found_index(None) == default_index()
    hits = ask(["a red ball"], k=3)
    lines = answers(hits).splitlines()
    assert [line.split()[2] for line in lines] == [f"Pictures/{Path(hit.id).name}" for hit in hits]
    assert json.loads(answers(hits, as_json=True))[0]["id"] == hits[0].id
    assert ask(["a red ball"], k=3, sheet=tmp_path / "a.png") == hits
    with Image.open(tmp_path / "a.png") as sheet:
        assert sheet.width == 3 * 212 + 12


def test_words_without_quotes_are_one_sentence(pictures, tmp_path, capsys):
    fill_index("Pictures", None, None)
    hits = ask(["a red ball"])
    (tmp_path / "a").mkdir()
    assert ask(["a", "red", "ball"]) == hits, "a folder that is no index is a word"
    assert ask([str(default_index()), "a", "red", "ball"]) == hits
    default_index().rename(tmp_path / "own")
    assert [hit.id for hit in ask(["own", "a red ball"])] == [hit.id for hit in hits]
    with pytest.raises(NotFound, match="photos/none does not exist"):
        ask(["photos/none", "a red ball"])


def test_words_that_only_look_like_a_path(pictures):
    fill_index("Pictures", None, None)
    for sentence in ("a red ball " * 30, "~nobody-has-this-name"):  # longer than a name may be; no such user
        assert len(ask([sentence + " ball"], k=3)) == 3


def test_a_picture_is_not_a_word(pictures):
    fill_index("Pictures", None, None)
    with pytest.raises(SelhnError, match=r"selhn search --like Pictures/2\.png"):
        ask(["Pictures/2.png"])
    assert len(ask(["2.png ball"], k=3)) == 3, "there is no such file"


def test_captions_are_asked_for_and_there_are_none(pictures):
    fill_index("Pictures", None, None)
    with pytest.raises(SelhnError, match="no captions"):
        ask(["a red ball"], find="text")


def test_a_word_with_a_minus_is_not_wanted(pictures, monkeypatch, capsys):
    fill_index("Pictures", None, None)
    expected = Index.load(default_index()).search(Query("a ball", without="red kite"), k=3)
    for words in (["a", "ball", "-red", "-kite"], ["-red", "a ball", "-kite"], ["a ball -red -kite"]):
        monkeypatch.setattr("sys.argv", ["selhn", "search", *words, "-k3", "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        assert [hit["score"] for hit in json.loads(capsys.readouterr().out)] == [
            hit.score for hit in expected
        ], words
    monkeypatch.setattr("sys.argv", ["selhn", "search", "ball", "-x"])
    with pytest.raises(SystemExit):
        main()
    assert "No such option: -x" in capsys.readouterr().err


def test_an_index_that_is_being_made(pictures, tmp_path, capsys):
    fill_index(str(pictures), tmp_path / "i", None)
    index = Index.load(tmp_path / "i")
    index.delete(index.ids())
    with HowFarFile(index.path, 0, 500):
        search(["a ball"], folder=tmp_path / "i", text_weight=2.0)
        told = capsys.readouterr()
        assert (told.out, told.err) == ("", "selhn: this index is being made: 0 of 500 pictures\n")
    search(["a ball"], folder=tmp_path / "i", text_weight=2.0)
    assert capsys.readouterr().out.startswith("nothing found: the index is empty")


def test_lists_by_date(pictures, tmp_path):
    for number in range(5):
        os.utime(pictures / f"{number}.png", (1e9 + number * 86_400, 1e9 + number * 86_400))
    fill_index("Pictures", None, None)
    listed = find_hits(Index.load(default_index()), None, 2, "image", None, "newest")
    first, second = map(str.split, answers(listed).splitlines())
    assert first == ["1", "2001-09-13", "01:46", "Pictures/4.png"]
    assert second == ["2", "2001-09-12", "01:46", "Pictures/3.png"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        search(
            [], order="oldest", k=1, as_json=True, where="modified >= 2001-09-10", sheet=tmp_path / "list.png"
        )
    assert [one["id"] for one in json.loads(said.getvalue())] == [str(pictures / "1.png")]
    assert (tmp_path / "list.png").stat().st_size > 1_000
    dated = ask(["a red ball"], order="oldest", k=5)
    assert [Path(hit.id).stem for hit in dated] == [*"01234"]
    assert sorted(hit.score for hit in dated) == sorted(hit.score for hit in ask(["a red ball"], k=5))
    with (
        contextlib.redirect_stdout(io.StringIO()) as said,
        pytest.raises(NotFound, match="did you mean 'modified'"),
    ):
        search([], where="modifed = 2001")


def test_a_sheet_is_refused_before_the_search(pictures, tmp_path, capsys):
    fill_index("Pictures", None, None)
    for sheet, kind in ((tmp_path / "sheet.xyz", SelhnError), (tmp_path / "none" / "a.png", NotFound)):
        with pytest.raises(kind, match=f"--sheet {sheet}"):
            search(["a red ball"], sheet=sheet)
    assert not capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_tiles_have_the_names_of_their_files(pictures):
    fill_index("Pictures", None, None)
    long = pictures / f"{'very ' * 20}long name.png"
    (pictures / "0.png").rename(long)
    fill_index("Pictures", None, None)
    tiles = answer_tiles(Library.open(default_index()), ask(["a red ball"], k=5))
    labels = [tile.label.split("\n")[1] for tile in tiles]
    assert {"1.png", "2.png", "3.png", "4.png"} < set(labels)
    (short,) = set(labels) - {"1.png", "2.png", "3.png", "4.png"}
    assert short.startswith("very very")
    assert short.endswith("name.png")
    assert ImageFont.load_default(15).getlength(short) <= 200


def test_what_is_not_a_folder_of_pictures(pictures, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "drawings").mkdir()
    (tmp_path / "drawings" / "a.xcf").touch()
    wrong = {
        "typo": "there is no folder .*typo",
        "empty": "empty holds no pictures: name a folder",
        "drawings": r"drawings holds no pictures \(but 1 .xcf\): name a folder",
        "Pictures/1.png": "1.png is one picture: name the folder that it is in: selhn index Pictures",
        "drawings/a.xcf": "a.xcf is a file",
    }
    for made in (False, True):
        for source, sentence in wrong.items():
            for dry_run in (False, True):
                with pytest.raises(SelhnError, match=sentence):
                    fill_index(source, None, None, dry_run=dry_run)
        if not made:
            assert not default_index().exists()
            fill_index("Pictures", None, None)


def test_a_disk_that_is_not_mounted_takes_nothing_away(pictures, tmp_path):
    fill_index("Pictures", None, None)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "7.png").write_bytes(encoded(photo(7), "PNG"))
    fill_index("more", None, None)
    for path in pictures.iterdir():
        path.unlink()
    with pytest.raises(
        NotFound, match="holds no pictures now, and the index has 5 from it.* add --remove-missing"
    ):
        fill_index("Pictures", None, None)
    assert fill_index("Pictures", None, None, dry_run=True, remove_missing=True).startswith(
        "0 pictures to add, 0 to"
    )
    pictures.rmdir()
    with pytest.raises(NotFound, match="there is no folder"):
        fill_index("Pictures", None, None)
    assert len(Index.load(default_index())) == 6
    assert "5 removed" in fill_index("Pictures", None, None, remove_missing=True)
    assert Index.load(default_index()).ids() == [str(tmp_path / "more" / "7.png")]
    with pytest.raises(NotFound, match="Pictures holds no pictures: "):
        fill_index("Pictures", None, None, remove_missing=True)


def test_asking_with_a_picture(pictures, tmp_path):
    fill_index("Pictures", None, None)
    for like in ("Pictures/2.png", str(pictures / "2.png")):
        found = ask([], like=like, k=10)
        assert len(found) == 4, "the picture itself is no answer"
    (tmp_path / "copy.png").write_bytes((pictures / "2.png").read_bytes())
    assert ask([], like="copy.png")[0].id == str(pictures / "2.png")
    mixed = ask(["a red ball"], like="copy.png", k=5)
    alone = {hit.id: hit.score for hit in ask(["a red ball"], k=5)}
    near = {hit.id: hit.score for hit in ask([], like="copy.png", k=5)}
    for hit in mixed:
        assert hit.score == pytest.approx((2 * alone[hit.id] + near[hit.id]) / 3, abs=1e-5)
    with pytest.raises(ValueError, match=r"nothing.png is neither an item of .* nor a file"):
        ask([], like="nothing.png")
    reds = {hit.id: hit.score for hit in ask(["red"], k=5)}
    for hit in ask(["-red"], like="copy.png", k=5):
        assert hit.score == pytest.approx((near[hit.id] - 0.5 * reds[hit.id]) / 1.5, abs=1e-5)
    with pytest.raises(SelhnError, match="not wanted"):
        ask(["-red"])
    assert "4 images" in change_index(None, delete=["Pictures/2.png"])


def test_what_a_screen_can_show():
    assert answers([]) == "nothing found: the index is empty, or the filter leaves nothing"
    line = answers([Hit(0.5, "image", "a\x1b[31m\nb.png", ("a caption\n 2   0.900  c.png",))])
    name = r"a\x1b[31m\nb.png"
    assert line == rf" 1   0.500  {name:24} a caption\n 2   0.900  c.png"


def test_matches_are_marked():
    hits = [Hit(0.5, "image", "a.png", fit=0.7), Hit(0.4, "image", "b.png", fit=0.4)]
    assert answers(hits).split("\n") == [
        "*  1   0.500  a.png",
        "   2   0.400  b.png",
        "* likely match",
    ]
    assert answers(hits[1:]) == "no sure match; the nearest are:\n 1   0.400  b.png"
    assert [hit["fit"] for hit in json.loads(answers(hits, as_json=True))] == [0.7, 0.4]


def test_an_index_in_milvus(pictures, saved, world, tmp_path):
    pytest.importorskip("milvus_lite", reason="tests of Milvus need Milvus Lite")
    said = fill_index("Pictures", "photos.db", None)
    assert "photos.db: 5 images, 0 texts, 8 numbers each in float32, by rvse" in said
    assert "--uri photos.db" in said
    assert len(ask(["a red ball"], "photos.db", k=3)) == 3
    assert len(ask([], "photos.db", like="Pictures/2.png", k=9)) == 4
    assert "4 images" in change_index("photos.db", delete=["Pictures/2.png"], approximate="exact")
    with pytest.raises(ValueError, match="on a server, .* use a folder"):
        change_index("photos.db", compact=True)
    fill_index(world, "photos.db#world", saved, "dev")
    with pytest.raises(ValueError, match="has no model .* give it with --model"):
        ask(["a red ball"], "photos.db#world")
    fill_index(world, tmp_path / "folder", saved, "dev")
    here = ask(["a red ball"], tmp_path / "folder", k=4, where="split = dev")
    there = ask(["a red ball"], "photos.db#world", k=4, where="split = dev", model=saved)
    assert [(hit.id, hit.captions) for hit in there] == [(hit.id, hit.captions) for hit in here]


def test_the_place_that_options_name(tmp_path):
    assert index_path(None, None) is None
    assert index_path(tmp_path, None) == tmp_path
    assert index_path(None, "http://host:19530") == "http://host:19530"
    with pytest.raises(ValueError, match="give one of them"):
        index_path(tmp_path, "x.db")
    with pytest.raises(ValueError, match="--uri x is not the address of a server"):
        index_path(None, "x")


def test_a_picture_that_is_gone_is_a_grey_tile(pictures, tmp_path):
    fill_index("Pictures", None, None)
    hits = ask(["a red ball"], k=3)
    (pictures / Path(hits[1].id).name).unlink()
    tiles = answer_tiles(Library.open(default_index()), hits)
    assert [("missing" in tile.label) for tile in tiles] == [False, True, False]
    ask(["a red ball"], k=3, sheet=tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 1_000
