import io
import os
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selhn.base import untrusted
from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.plain_yaml import parse_yaml
from selhn.base.untrusted import (
    open_array,
    read_archive,
    read_integers,
    read_json,
    read_json_lines,
    read_lines,
    some,
)


def npy(array, cut=None, extra=b""):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()[:cut] + extra


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "file"
        path.write_bytes(content if isinstance(content, bytes) else npy(content))
        return path

    return write


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_is_mapped_not_read(file, order):
    array = np.asarray(np.random.default_rng(0).random((4, 3, 2)), order=order)
    found = open_array(file(array))
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, array)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_a_header_of_python_2(file):
    # "(2L, 3L)" is how the well-known feature files say their shape; numpy warns of it.
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }".ljust(117) + b"\n"
    path = file(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(24))
    assert open_array(path).shape == (2, 3)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not a .npy array"),
        (b"\x93NUMPY\x01\x00\xff\xff", "is not a .npy array"),
        (b"\x93NUMPY\x09\x00\x10\x00", "is not a .npy array"),
        (b"not an array at all", "is not a .npy array"),
        (npy(np.ones((3, 4)), cut=-5), "cut off"),
        (npy(np.ones((3, 4)), extra=b"more"), "continues after its end"),
        (npy(np.array([[{}, 1]], dtype=object)), "pickle"),
        (npy(np.ones((3, 4), int)), "int64"),
        (npy(np.ones(3)), "2 or 3 axes"),
        (npy(np.ones((0, 4))), "nothing"),
        (npy(np.zeros((2, 2), [("a", "f4")])), "floats"),
    ],
)
def test_arrays_that_are_refused(file, content, sentence):
    with pytest.raises(SelhnError, match=sentence):
        open_array(file(content))


def test_a_header_that_promises_the_world_costs_nothing(file):
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10**18, 3), }".replace(
        b"10**18", b"1" + b"0" * 18
    )
    head = head.ljust(117) + b"\n"
    with pytest.raises(Damaged, match="cut off"):
        open_array(file(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_give_a_sentence(file, content, with_magic):
    path = file((b"\x93NUMPY\x01\x00" if with_magic else b"") + content)
    with pytest.raises(Damaged):
        open_array(path)


def test_a_pipe_or_a_folder_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "nothing"):
        with pytest.raises(NotFound):
            open_array(path)


def test_an_archive(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez(path, one=np.arange(4, dtype=np.float16), two=np.ones((2, 2), order="F"))
    one, two = read_archive(path, ("one", "two"))
    assert one.dtype == two.dtype == np.float32
    assert one.tolist() == [0, 1, 2, 3]
    with pytest.raises(NotFound, match="three"):
        read_archive(path, ("one", "three"))
    np.savez_compressed(path, one=np.zeros(100_000))
    monkeypatch.setattr(untrusted, "MAX_PROJECTION_BYTES", 1000)
    with pytest.raises(Damaged, match="cut off"):
        read_archive(path, ("one",))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("one.npy", npy(np.ones(3, int)))
    with pytest.raises(SelhnError, match="floats"):
        read_archive(path, ("one",))
    path.write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(Damaged, match="npz"):
        read_archive(path, ("one",))


def test_lines(file):
    assert read_lines(file("\ufeffa\r\n b \u2028c\nd".encode())) == ["a", "b \u2028c", "d"]
    assert read_lines(file(b"")) == []


@pytest.mark.parametrize(
    ("read", "content", "sentence"),
    [
        (read_lines, b"a\nb\xe9\n", "line 2.*UTF-8"),
        (read_integers, b"1\n2\nx\n", "line 3"),
        (read_integers, b"-1\n", "line 1"),
        (read_integers, "\u00b2\n".encode(), "line 1"),
        (read_json, b"{", "JSON"),
        (read_json, b"[" * 100_000, "JSON"),
        (read_json, b"[1]", "one JSON object"),
        (lambda path: read_json_lines(path, image=int), b'{"image": 0}\n{"image": "0"}\n', "line 2"),
        (lambda path: read_json_lines(path, image=int), b'{"image": true}\n', "line 1"),
        (lambda path: read_json_lines(path, image=int), b"[]\n", "line 1"),
    ],
)
def test_texts_that_are_refused(file, read, content, sentence):
    with pytest.raises(SelhnError, match=sentence):
        read(file(content))


def test_a_text_that_is_too_large(file, monkeypatch):
    monkeypatch.setattr(untrusted, "MAX_TEXT_BYTES", 3)
    with pytest.raises(SelhnError):
        read_lines(file(b"four"))


def test_some():
    assert some([1, 2]) == "1, 2"
    assert some(range(10)) == "0, 1, 2, 3, 4 and 5 more"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a: &a [1, 2]\nb: [*a, *a]", "uses references"),
        ("a: &a\n  <<: *a", "uses references"),
        ("a: " + "[" * 30_000, "recursion"),
        ("a: " + "9" * 9_000, "limit"),
        ("a: 0x" + "f" * 9_000, "64 bits"),
        ("a: !!bool what", "is not YAML"),
        ("a: !!int ''", "is not YAML"),
        ("a: 2020-99-99", "is not YAML"),
        ("a: !!python/object/apply:os.system [ls]", "is not YAML"),
        ("- 1", "should hold names with values"),
        ("train: {1: 2}", "a key that is not text"),
        ("a: 1\n" * 20_000, "too many for settings"),
    ],
)
def test_yaml_that_is_refused(content, sentence):
    with pytest.raises(Damaged, match=sentence):
        parse_yaml(content, "a.yaml")


def test_yaml():
    assert parse_yaml("lr: 0.5\nmodel: {dim: 16}\ndecay_at: [1, 2]\n", "a.yaml") == {
        "lr": 0.5,
        "model": {"dim": 16},
        "decay_at": [1, 2],
    }
