"""A collection embedded in shards: from every kind of source, continued after every kind of accident."""

import hashlib
import json
import shutil
import sys

import numpy as np
import pytest
import torch
from picture_cases import TinyBackbone, encoded, photo

from selhn.base.errors import Damaged, Linked, Locked, MissingExtra, NotFound, SelhnError
from selhn.base.files import writing
from selhn.base.sealed import write_sealed_json
from selhn.export import towers_of
from selhn.models import create_model
from selhn.pictures import Extractor, Library, embed_pictures
from selhn.search import Index
from selhn.search.shards import Shards, index_embeddings
from selhn.text import Vocabulary

parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs the extra export")
import pyarrow  # noqa: E402

NUMBER = 12


def small_model():
    torch.manual_seed(0)
    words = Vocabulary.build(["a red ball", "a dog in the snow"], 1)
    return create_model("rvse", tokenizer=words, feature_dim=4, dim=8).eval()


MODEL = small_model()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Twelve pictures, one of them twice, and two files that are none."""
    folder = tmp_path_factory.mktemp("source") / "Pictures"
    (folder / "trip").mkdir(parents=True)
    for number in range(NUMBER):
        where = folder / ("trip" if number % 2 else ".")
        (where / f"{number:02}.png").write_bytes(encoded(photo(number % 11), "PNG"))
    (folder / "trip" / "cut.png").write_bytes(encoded(photo(1), "PNG")[:100])
    (folder / "empty.jpg").write_bytes(b"")
    return folder


def embed(source, out, rows=4, backbone=None, **how):
    extractor = Extractor(backbone or TinyBackbone())
    return embed_pictures(
        source, out, towers=towers_of(MODEL), extractor=extractor, rows_per_shard=rows, quiet=True, **how
    )


def content(folder):
    """Digests of all files that do not depend on where the folder is."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def items(folder):
    return list(Shards.open(folder).items())


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    embed(pictures, out)
    return out


def test_a_folder_in_the_layout_of_clip_retrieval(pictures, whole):
    found = parquet.read_table(whole / "metadata" / "metadata_0.parquet").to_pydict()
    vectors = np.load(whole / "img_emb" / "img_emb_0.npy")
    assert vectors.dtype == np.float16
    assert vectors.shape == (len(found["image_path"]), 8)
    assert np.allclose(np.linalg.norm(vectors.astype(np.float32), axis=1), 1, atol=1e-3)
    assert found["image_path"][0] == str(pictures / "00.png")
    assert {"width", "height", "folder", "file", "modified", "bytes"} <= found.keys()
    assert not (whole / "text_emb").exists()
    every = items(whole)
    assert [item.id for item in every] == sorted(str(path) for path in pictures.rglob("??.png"))


def test_bad_pictures_are_listed_and_not_fatal(pictures, whole, tmp_path):
    done = embed(pictures, whole)
    assert (done.rows, done.left_out) == (NUMBER, 2)
    told = Shards.open(whole).left_out(10)
    assert [name.rpartition("/")[2] for name, _ in told] == ["empty.jpg", "cut.png"]
    assert "empty: copy it again" in str(done)
    assert "cut.png" in str(done)
    alone = tmp_path / "bad"
    alone.mkdir()
    shutil.copy(pictures / "empty.jpg", alone)
    done = embed(alone, tmp_path / "out")  # not one picture of the only shard
    assert (done.rows, done.left_out) == (0, 1)
    assert items(tmp_path / "out") == []


def test_a_list_of_files_and_parquet_give_the_same_vectors(pictures, whole, tmp_path):
    names = sorted(path for path in pictures.rglob("*") if path.is_file())
    (pictures / "list.txt").write_text(
        "".join(f"{path.relative_to(pictures)}\n" for path in names) + "\nhttp://a/b.jpg"
    )
    captions = [None if number == 3 else "a red ball" for number in range(len(names))]
    table = {
        "url": [str(path) for path in names],
        "caption": captions,
        "year": [*range(2000, 2000 + len(names))],
    }
    parquet.write_table(pyarrow.table(table), tmp_path / "paths.parquet")
    images = [{"bytes": path.read_bytes(), "path": path.name} for path in names]
    (tmp_path / "held").mkdir()
    for part, some in enumerate((slice(0, 5), slice(5, None))):  # shards do not end where files do
        held = pyarrow.table({"image": images[some], "label": [*range(len(names))][some]})
        parquet.write_table(held, tmp_path / "held" / f"{part}.parquet", row_group_size=3)
    try:
        done = embed(pictures / "list.txt", tmp_path / "of_list")
    finally:
        (pictures / "list.txt").unlink()
    assert done.left_out == 3
    assert "nothing is downloaded" in str(done)
    embed(tmp_path / "paths.parquet", tmp_path / "of_paths", root=pictures)
    embed(tmp_path / "held", tmp_path / "of_bytes", caption=None)
    wanted = {item.id: item.vector for item in items(whole)}
    of_list, of_paths, of_bytes = (items(tmp_path / name) for name in ("of_list", "of_paths", "of_bytes"))
    for found in (of_list, of_paths):
        assert [item.id for item in found] == list(wanted)
        assert all(torch.equal(item.vector, wanted[item.id]) for item in found)
    assert all(torch.equal(item.vector, vector) for item, vector in zip(of_bytes, wanted.values()))
    assert of_bytes[-1].id == f"{tmp_path / 'held' / '1.parquet'}#7"
    assert of_bytes[-1].metadata["label"] == 12
    assert of_paths[0].metadata["year"] == 2000
    assert [len(item.captions) for item in of_paths[:4]] == [1, 1, 1, 0]
    texts = np.load(tmp_path / "of_paths" / "text_emb" / "text_emb_0.npy")
    assert np.abs(texts).sum(1).astype(bool).tolist() == [True, True, True, False]


def test_the_same_bits_for_any_number_of_workers_and_as_in_an_index(pictures, whole, tmp_path):
    for workers in (1, 5):
        embed(pictures, tmp_path / str(workers), workers=workers)
        assert content(tmp_path / str(workers)) == content(whole)
    library = Library.create(tmp_path / "index", towers_of(MODEL), Extractor(TinyBackbone()))
    library.apply(library.plan(Library.scan(pictures)), cache=tmp_path / "cache", quiet=True)
    vectors = torch.cat([images for _, images, _ in library.index.embeddings()])
    assert torch.allclose(vectors, torch.stack([item.vector for item in items(whole)]), atol=1e-3)
    assert {one.id: one.metadata for one in library.index.records()} == {
        item.id: item.metadata for item in items(whole)
    }


@pytest.mark.parametrize("accident", ["cut", "gone", "bit", "record", "record cut", "not begun"])
def test_only_what_is_damaged_is_made_again(pictures, whole, tmp_path, accident):
    out = shutil.copytree(whole, tmp_path / "out")
    vectors, record = out / "img_emb" / "img_emb_1.npy", out / "done" / "done_1.json"
    if accident == "cut":
        vectors.write_bytes(vectors.read_bytes()[:-7])
    elif accident == "gone":
        (out / "metadata" / "metadata_1.parquet").unlink()
    elif accident == "bit":
        vectors.write_bytes(vectors.read_bytes()[:-1] + b"\1")
    elif accident == "record":
        record.unlink()
    elif accident == "record cut":
        record.write_bytes(record.read_bytes()[:50])
    else:
        for path in (vectors, record, out / "metadata" / "metadata_1.parquet"):
            path.unlink()
        (out / ".partial" / "1-abc").mkdir(parents=True)
    with pytest.raises((Damaged, NotFound)):
        items(out)
    backbone = TinyBackbone()
    embed(pictures, out, backbone=backbone)
    assert sum(backbone.calls) == 3  # the fourth of this shard is empty
    assert content(out) == content(whole)


def test_a_full_disk_is_one_sentence_and_the_same_command_continues(pictures, whole, tmp_path, monkeypatch):
    """numpy tells how many bytes were written, and not that there is no space."""
    save, saved = np.save, []

    def filled(path, vectors):
        saved.append(path)
        if len(saved) > 2:
            raise OSError("10240 requested and 1984 written")
        save(path, vectors)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", filled)
        with pytest.raises(
            OSError, match=r"shard 2 of .* could not be written \(10240 .*: what is done is kept; free"
        ):
            embed(pictures, tmp_path / "out")
    backbone = TinyBackbone()
    embed(pictures, tmp_path / "out", backbone=backbone)
    assert sum(backbone.calls) == NUMBER - 7, "the first two shards have seven"
    assert content(tmp_path / "out") == content(whole)


def test_a_manifest_that_was_cut_says_what_to_do(pictures, whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "out")
    (out / "manifest.json").write_bytes((out / "manifest.json").read_bytes()[:100])
    with pytest.raises(Damaged, match=r"manifest\.json is not JSON .*: remove the folder and embed again$"):
        embed(pictures, out)


def test_a_kill_in_the_middle_of_a_shard_loses_only_that_shard(pictures, whole, tmp_path):
    class Killed(BaseException):
        pass

    class Mortal(TinyBackbone):
        def maps(self, pixels):
            if sum(self.calls) >= 6:
                raise Killed
            return super().maps(pixels)

    with pytest.raises(Killed):
        embed(pictures, tmp_path / "out", backbone=Mortal())
    backbone = TinyBackbone()
    embed(pictures, tmp_path / "out", backbone=backbone)
    assert 0 < sum(backbone.calls) < NUMBER
    assert content(tmp_path / "out") == content(whole)


def test_retry_makes_shards_again_that_left_pictures_out(pictures, tmp_path):
    source = shutil.copytree(pictures, tmp_path / "Pictures")
    embed(source, tmp_path / "out")
    (source / "empty.jpg").write_bytes(encoded(photo(3), "JPEG"))
    assert embed(source, tmp_path / "out").left_out == 2
    done = embed(source, tmp_path / "out", retry=True)
    assert (done.rows, done.left_out) == (NUMBER + 1, 1)
    assert len(items(tmp_path / "out")) == NUMBER + 1


def test_an_index_from_shards(pictures, whole, tmp_path):
    index = index_embeddings(whole, tmp_path / "index", towers_of(MODEL), quiet=True)
    assert len(index) == NUMBER
    direct = Library.create(tmp_path / "direct", towers_of(MODEL), Extractor(TinyBackbone()))
    direct.apply(direct.plan(Library.scan(pictures)), cache=tmp_path / "cache", quiet=True)
    ours, theirs = (found.search("a red ball", k=NUMBER) for found in (index, direct.index))
    assert np.allclose([hit.score for hit in ours], [hit.score for hit in theirs], atol=2e-3)
    assert (
        len(index_embeddings(whole, tmp_path / "index", towers_of(MODEL), quiet=True)) == NUMBER
    )  # nothing twice
    library = Library(Index.load(tmp_path / "index"), Extractor(TinyBackbone()))
    assert library.plan(Library.scan(pictures)).unchanged == NUMBER
    torch.manual_seed(1)  # other weights than MODEL has, whatever ran before
    other = create_model("rvse", tokenizer=MODEL.tokenizer, feature_dim=4, dim=8)
    with pytest.raises(SelhnError, match="another model"):
        index_embeddings(whole, tmp_path / "other", towers_of(other))
    foreign = tmp_path / "foreign"  # as clip-retrieval writes it: without a manifest
    for kind in ("img_emb", "metadata"):
        shutil.copytree(whole / kind, foreign / kind)
    assert len(index_embeddings(foreign, tmp_path / "foreign.index", towers_of(MODEL), quiet=True)) == NUMBER
    with pytest.raises(SelhnError, match="--model"):
        index_embeddings(foreign, tmp_path / "none")
    table = parquet.read_table(foreign / "metadata" / "metadata_1.parquet")
    parquet.write_table(table.slice(1), foreign / "metadata" / "metadata_1.parquet")
    with pytest.raises(Damaged, match="does not have the 3 rows"):
        index_embeddings(foreign, tmp_path / "short", towers_of(MODEL), quiet=True)


def test_another_command_on_a_folder_that_was_begun(pictures, whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "out")
    for how in ({"rows": 5}, {"source": pictures / "trip"}, {"caption": "text"}):
        with pytest.raises(SelhnError, match="was begun with another"):
            embed(**{"source": pictures, "out": out, **how})
    torch.manual_seed(1)
    torch.manual_seed(1)  # other weights than MODEL has, whatever ran before
    other = create_model("rvse", tokenizer=MODEL.tokenizer, feature_dim=4, dim=8)
    with pytest.raises(SelhnError, match="another model"):
        embed_pictures(
            pictures, out, towers=towers_of(other), extractor=Extractor(TinyBackbone()), rows_per_shard=4
        )
    with pytest.raises(SelhnError, match="another features"):
        embed_pictures(
            pictures, out, towers=towers_of(MODEL), extractor=Extractor(TinyBackbone(), 2), rows_per_shard=4
        )
    with writing(out), pytest.raises(Locked):
        embed(pictures, out)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("x")
    with pytest.raises(SelhnError, match=r"holds 'mine\.txt'"):
        embed(pictures, tmp_path / "notes")
    (out / "inputs" / "inputs_0.jsonl").write_text('{"path": "/etc/hosts"}\n')
    (out / "done" / "done_0.json").unlink()
    with pytest.raises(Damaged, match="inputs_0"):
        embed(pictures, out)


def test_sources_that_are_none(pictures, tmp_path):
    with pytest.raises(NotFound, match="there is no"):
        embed(tmp_path / "missing", tmp_path / "out")
    with pytest.raises(Damaged, match="is not a path: write one per line"):
        embed(pictures / "00.png", tmp_path / "out")
    (tmp_path / "bare").mkdir()
    with pytest.raises(NotFound, match="neither pictures nor Parquet"):
        embed(tmp_path / "bare", tmp_path / "out")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(SelhnError, match="no pictures to embed"):
        embed(tmp_path / "empty.txt", tmp_path / "out")
    table = tmp_path / "table.parquet"
    parquet.write_table(pyarrow.table({"number": [1, 2]}), table)
    with pytest.raises(NotFound, match="--column"):
        embed(table, tmp_path / "out")
    with pytest.raises(NotFound, match="no column 'photo'"):
        embed(table, tmp_path / "out", column="photo")
    table.write_bytes(table.read_bytes()[:-9])
    with pytest.raises(Damaged, match="not readable Parquet"):
        embed(table, tmp_path / "out")
    with pytest.raises(SelhnError, match="columns are for Parquet"):
        embed(pictures, tmp_path / "out", column="image")
    with pytest.raises(SelhnError, match="at least 1"):
        embed(pictures, tmp_path / "out", rows=0)


@pytest.fixture
def strangers(tmp_path, pictures):
    """A folder from elsewhere with one picture, beside a private one of the user."""
    (tmp_path / "private.png").write_bytes((pictures / "02.png").read_bytes())
    folder = tmp_path / "strangers"
    folder.mkdir()
    shutil.copy(pictures / "00.png", folder)
    (folder / "link.png").symlink_to(tmp_path / "private.png")
    return folder


@pytest.mark.parametrize("kind", ["list", "parquet", "held"])
@pytest.mark.parametrize("name", ["absolute", "above", "link", "link above"])
def test_no_picture_outside_the_folder_of_a_list_or_parquet_is_read(strangers, tmp_path, kind, name):
    (strangers / "up").symlink_to(tmp_path)
    named = {"absolute": str(tmp_path / "private.png"), "above": "../private.png", "link": "link.png"}
    names = ["00.png", named.get(name, "up/private.png")]
    source = strangers / ("list.txt" if kind == "list" else "table.parquet")
    if kind == "list":
        source.write_text("\n".join(names))
    else:
        column = [{"bytes": None, "path": one} for one in names] if kind == "held" else names
        parquet.write_table(pyarrow.table({"image": column} if kind == "held" else {"path": column}), source)
    with pytest.raises(SelhnError, match=f"(line|row) .*leads out of {strangers}.* --root {tmp_path},"):
        embed(source, tmp_path / "out")
    assert not list((tmp_path / "out").glob("img_emb/*"))
    assert embed(source, tmp_path / "out", root=tmp_path).rows == 2, (
        "the same folder, with what the error says"
    )


def test_a_folder_of_pictures_may_have_links_to_pictures(strangers, tmp_path):
    assert embed(strangers, tmp_path / "out").rows == 2


def test_embeddings_from_elsewhere_name_no_file_outside_the_source(pictures, whole, tmp_path):
    """Somebody sends a folder that is almost finished: what its lists name is checked again."""
    out, source = shutil.copytree(whole, tmp_path / "out"), shutil.copytree(pictures, tmp_path / "Pictures")
    lines = out / "inputs" / "inputs_0.jsonl"
    lines.write_text(json.dumps({"path": str(pictures / "00.png")}) + "\n")
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["inputs"][0] = hashlib.sha256(lines.read_bytes()).hexdigest()
    manifest["about"]["source"] = str(source)
    del manifest["sha256"], manifest["format"]
    write_sealed_json(out / "manifest.json", manifest)
    (out / "done" / "done_0.json").unlink()
    with pytest.raises(SelhnError, match="leads out of"):
        embed(source, out)


@pytest.mark.parametrize(
    "place", ["img_emb", "inputs", "done/done_0.json", "manifest.json", ".partial", "lock"]
)
def test_a_link_in_a_folder_of_embeddings_is_refused(pictures, whole, tmp_path, place):
    out, outside = shutil.copytree(whole, tmp_path / "out"), tmp_path / "outside"
    if (out / place).exists():
        (out / place).rename(outside)
    else:
        outside.mkdir()
    (out / place).symlink_to(outside)
    before = content(tmp_path)
    for use in (
        lambda: embed(pictures, out),
        lambda: items(out),
        lambda: index_embeddings(out, tmp_path / "i", towers_of(MODEL)),
    ):
        with pytest.raises(Linked):
            use()
    assert content(tmp_path) == before


def test_parquet_that_changes_after_it_was_listed_stops_the_run(pictures, tmp_path):
    table = tmp_path / "table.parquet"
    contents = [path.read_bytes() for path in sorted(pictures.glob("*.png"))]
    parquet.write_table(pyarrow.table({"image": contents}), table)
    embed(table, tmp_path / "out", rows=3)
    (tmp_path / "out" / "done" / "done_1.json").unlink()
    whole = table.read_bytes()
    table.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Damaged, match="has changed since it was listed"):
        embed(table, tmp_path / "out", rows=3)
    table.write_bytes(whole)
    assert embed(table, tmp_path / "out", rows=3).rows == len(contents)


def test_without_ray_the_message_says_what_to_install(pictures, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[ray\]"):
        embed(pictures, tmp_path / "out", ray="local")
    assert not (tmp_path / "out").exists()


def test_the_manifest_says_what_it_was_made_from(whole):
    manifest = json.loads((whole / "manifest.json").read_text())
    assert manifest["pictures"] == NUMBER + 2
    assert len(manifest["inputs"]) == 4
    assert manifest["identity"]["width"] == 8
