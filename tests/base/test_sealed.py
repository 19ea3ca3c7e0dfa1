import json

import pytest

from selhn.base.errors import Damaged
from selhn.base.sealed import (
    CHECKSUMS_FILE,
    read_sealed_json,
    read_sealed_text,
    seal,
    verify,
    write_sealed_json,
    write_sealed_text,
)

NAMES = ("a", "b", "c")


@pytest.fixture
def sealed(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(name)
    seal(tmp_path, NAMES)
    verify(tmp_path, NAMES, "copy it")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *[("a", "b"), ("a", None), ("a", ""), ("c", "new")],
        *[(CHECKSUMS_FILE, None), (CHECKSUMS_FILE, "{}"), (CHECKSUMS_FILE, ""), (CHECKSUMS_FILE, "[]")],
    ],
)
def test_a_folder_that_is_not_what_was_written(sealed, file, content):
    if content is None:
        (sealed / file).unlink()
    else:
        (sealed / file).write_text(content)
    with pytest.raises(Damaged, match=f"{file} "):
        verify(sealed, NAMES, "copy it")


def test_checksums_that_leave_a_file_out(sealed):
    (sealed / CHECKSUMS_FILE).write_text('{"sha256": {}}')
    with pytest.raises(Damaged):
        verify(sealed, NAMES, "copy it")


def test_a_folder_from_before(sealed):
    (sealed / CHECKSUMS_FILE).unlink()
    verify(sealed, NAMES, "copy it", required=False)
    (sealed / "mine").write_text("notes")
    seal(sealed, NAMES)
    verify(sealed, NAMES, "copy it")


def test_every_bit_of_a_small_file(tmp_path):
    content = {"rsum": 0.1, "of": {5: [1, None], 10: "é"}}
    write_sealed_json(tmp_path / "file", content)
    assert read_sealed_json(tmp_path / "file", "") == json.loads(json.dumps(content))
    write_sealed_text(tmp_path / "text", "a: 1\nb: é\n")
    assert read_sealed_text(tmp_path / "text", "") == "a: 1\nb: é\n"
    for name, read in (("file", read_sealed_json), ("text", read_sealed_text)):
        whole, before = (tmp_path / name).read_bytes(), read(tmp_path / name, "")
        changed = [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(len(whole))]
        for content in [*changed, *(whole[:at] for at in range(len(whole) - 1))]:
            (tmp_path / name).write_bytes(content)
            try:
                found = read(tmp_path / name, "")
            except Damaged:
                continue
            if name == "text" and found != before:  # the first line is a comment then
                assert not found or found.startswith("#")
                found = found.partition("\n")[2]
            assert found in (before, ""), "at most the white space differs"


def test_small_files_from_before(tmp_path):
    (tmp_path / "file").write_text('{"rsum": 1}')
    assert read_sealed_json(tmp_path / "file", "") == {"rsum": 1}
    (tmp_path / "file").write_text('{"rsum": 1, "format": 2}')
    with pytest.raises(Damaged):
        read_sealed_json(tmp_path / "file", "")
    (tmp_path / "text").write_text("a: 1\n")
    assert read_sealed_text(tmp_path / "text", "") == "a: 1\n"
