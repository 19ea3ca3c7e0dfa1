import errno
import json
import os

import numpy as np
import pytest
import torch

from selhn.base.errors import Damaged
from selhn.search.stores.checked_files import (
    check_content,
    check_length,
    open_rows,
    read_checked_json,
    write_checked_json,
    write_rows,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.int32])
def test_an_array_in_parts_is_what_numpy_reads(tmp_path, dtype):
    rows = (torch.rand(7, 3) * 100).to(dtype)
    entry = write_rows(tmp_path / "a.npy", dtype, (7, 3), rows.split(2))
    assert np.array_equal(np.load(tmp_path / "a.npy", allow_pickle=False), rows.numpy())
    check_content(tmp_path / "a.npy", entry)
    mapped = open_rows(tmp_path / "a.npy", dtype, (7, 3))
    assert torch.equal(mapped, rows)
    mapped[0] = 0
    check_content(tmp_path / "a.npy", entry)


def test_files_that_are_not_what_was_written(tmp_path):
    path = tmp_path / "a.npy"
    entry = write_rows(path, torch.float32, (4, 2), [torch.ones(4, 2)])
    for shape, dtype in (((2, 4), torch.float32), ((4, 2), torch.float16)):
        with pytest.raises(Damaged, match=", not "):
            open_rows(path, dtype, shape)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    check_length(path, entry)
    with pytest.raises(Damaged, match="its checksum differs"):
        check_content(path, entry)
    path.write_bytes(content[:-1])
    with pytest.raises(Damaged, match="has 159 bytes, not 160"):
        check_length(path, entry)
    with pytest.raises(Damaged, match="no size and checksum"):
        check_length(path, ["x"])


def test_json_knows_when_it_was_changed(tmp_path):
    path = tmp_path / "m.json"
    write_checked_json(path, {"b": [1, 2.5], "a": {"é": None}})
    assert read_checked_json(path) == {"b": [1, 2.5], "a": {"é": None}}
    path.write_text(path.read_text().replace("2.5", "2.4"))
    with pytest.raises(Damaged, match="checksum differs"):
        read_checked_json(path)
    path.write_text(json.dumps({"b": 1}))
    with pytest.raises(Damaged, match="checksum differs"):
        read_checked_json(path)


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.json"
    write_checked_json(path, {"a": 1})

    def no_room(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space left"):
        write_checked_json(path, {"a": 2})
    monkeypatch.undo()
    assert read_checked_json(path) == {"a": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["m.json"]
