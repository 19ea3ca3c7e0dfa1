"""What other processes are told about an index that is being made."""

import json
import os
import platform
import subprocess
import sys

import pytest

from selhn.pictures.how_far import PROGRESS_FILE, HowFar, in_words, left_out
from selhn.pictures.picture_report import REPORT_FILE

TOLD = {"done": 1240, "total": 5000, "left_out": 1, "seconds_left": 181.0, "process": os.getpid()}
TOLD["host"] = platform.node()


def write(folder, **changes):
    (folder / PROGRESS_FILE).write_text(json.dumps({**TOLD, **changes}))


def test_words(tmp_path):
    write(tmp_path)
    assert str(HowFar.read(tmp_path)) == "1,240 of 5,000 pictures, about 3 minutes left"
    words = [in_words(seconds) for seconds in (3, 31, 60, 200, 3500, 4000, 10_000)]
    assert words == [
        *("a few seconds", "about 30 seconds", "about a minute", "about 3 minutes"),
        *("about an hour", "about an hour", "about 3 hours"),
    ]


def test_a_process_that_has_ended_tells_nothing(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write(tmp_path, process=ended.pid)
    assert HowFar.read(tmp_path) is None
    write(tmp_path, process=ended.pid, host="another machine")
    assert HowFar.read(tmp_path) is not None
    os.utime(tmp_path / PROGRESS_FILE, (1e9, 1e9))
    assert HowFar.read(tmp_path) is None
    assert HowFar.read(None) is HowFar.read(tmp_path / "nowhere") is HowFar.read("http://host:19530") is None


@pytest.mark.parametrize(
    "wrong",
    [{"done": -1}, {"done": "a"}, {"total": 1e3}, {"seconds_left": "x"}, {"process": 0}, {"process": 2**70}],
)
def test_what_others_wrote_there(wrong, tmp_path):
    write(tmp_path, **wrong)
    assert HowFar.read(tmp_path) is None


def test_files_that_were_left_out(tmp_path):
    assert left_out(tmp_path) == left_out(None) == []
    (tmp_path / "pictures.json").write_text(json.dumps({"left out": [["a.jpg", "is empty"], 3, ["b"]]}))
    assert left_out(tmp_path) == [("a.jpg", "is empty")]


def test_links_are_not_followed(tmp_path):
    write(tmp_path)
    (tmp_path / REPORT_FILE).write_text(json.dumps({"left out": [["mine.png", "private"]]}))
    assert left_out(tmp_path) == [("mine.png", "private")]
    (tmp_path / "index").mkdir()
    for name in (PROGRESS_FILE, REPORT_FILE):
        (tmp_path / "index" / name).symlink_to(tmp_path / name)
    assert HowFar.read(tmp_path / "index") is None
    assert left_out(tmp_path / "index") == []
