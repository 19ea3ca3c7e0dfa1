import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from picture_cases import encoded, photo, scan_bomb, slow_picture, tiff_of_jpeg
from PIL import Image

from selhn.base.errors import SelhnError
from selhn.pictures import decoder, decoding, picture_headers
from selhn.pictures.decoder_processes import end_decoders
from selhn.pictures.decoding import Decoding, decode_picture

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limits are those of Linux")


def is_well():
    """The next picture is decoded as usual."""
    return decode_picture(encoded(photo()), "a.jpg").image.size == (40, 30)


def cpu_seconds_of(function):
    """CPU time of decoders that ended meanwhile, and of this process."""
    before = os.times()
    function()
    end_decoders()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


@pytest.mark.parametrize("scans", [1, 2, 90, picture_headers.MOST_SCANS])
def test_scans_of_a_jpeg_are_counted(scans):
    content = scan_bomb(scans, 40, 30)
    assert picture_headers.jpeg_scans(content) == scans
    assert decode_picture(content, "a.jpg").image.size == (40, 30)


def test_scans_are_those_of_the_first_picture():
    thumbnail = b"Exif\0\0" + scan_bomb(200, 16, 16)
    assert picture_headers.jpeg_scans(encoded(photo(), exif=thumbnail)) == 1, "inside of a segment"
    assert picture_headers.jpeg_scans(encoded(photo(), progressive=True)) == 10
    assert picture_headers.jpeg_scans(encoded(photo(), restart_marker_blocks=1)) == 1
    assert picture_headers.jpeg_scans(encoded(photo()) + scan_bomb(200, 16, 16)) == 1, "behind its end"
    assert picture_headers.jpeg_scans(b"\xff\xd8\xff\xda") == 1, "cut off"
    several = encoded(photo(), "MPO", save_all=True, append_images=[photo(1)])
    assert picture_headers.jpeg_scans(several) == 1
    assert decode_picture(several, "a.mpo").format == "MPO"


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded():
    bomb = scan_bomb(330_000, 1600, 1200)
    assert len(bomb) < 20 * 2**20

    def refused():
        with pytest.raises(SelhnError, match="a.jpg is a JPEG with more than 100 scans"):
            decode_picture(bomb, "a.jpg")

    assert cpu_seconds_of(refused) < 1
    assert is_well()


def test_a_tiff_that_holds_a_jpeg_of_many_scans():
    assert decode_picture(tiff_of_jpeg(scan_bomb(3, 400, 304), 400, 304), "a.tif").format == "TIFF"

    def refused():
        with pytest.raises(SelhnError):
            decode_picture(tiff_of_jpeg(scan_bomb(2000, 800, 600), 800, 600), "a.tif")

    assert cpu_seconds_of(refused) < 1.5
    assert is_well()


@linux
def test_cpu_time_ends_a_decode(monkeypatch):
    monkeypatch.setitem(decoding.LIMITS, "seconds", 0.2)
    monkeypatch.setitem(decoding.LIMITS, "seconds_per_megapixel", 0.01)

    def refused():
        with pytest.raises(SelhnError, match="a.ppm takes too long to decode"):
            decode_picture(slow_picture(1500, 1500), "a.ppm")

    assert cpu_seconds_of(refused) < 1
    assert is_well()


@linux
def test_memory_ends_a_decode(monkeypatch):
    monkeypatch.setitem(decoding.LIMITS, "memory", 20 * 2**20)
    with pytest.raises(SelhnError, match="a.png does not fit into memory"):
        decode_picture(encoded(Image.new("RGB", (3000, 3000)), "PNG"), "a.png")
    assert is_well()
    monkeypatch.undo()
    assert decode_picture(encoded(Image.new("L", (3000, 3000)), "PNG"), "a.png").image.size == (3000, 3000)


def test_another_thread_ends_a_decode():
    waiting = Decoding()
    found = []

    def decode():
        try:
            found.append(waiting.run(decode_picture, slow_picture(1500, 1500), "a.ppm"))
        except SelhnError as error:
            found.append(error)

    thread = threading.Thread(target=decode)
    thread.start()
    time.sleep(0.3)
    started = time.monotonic()
    waiting.end()
    thread.join()
    assert time.monotonic() - started < 1
    assert isinstance(found[0], SelhnError)
    with pytest.raises(SelhnError):  # what was ended before it began
        waiting.run(decode_picture, encoded(photo()), "a.jpg")
    assert is_well()


def test_the_clock_ends_a_decode_where_cpu_time_is_not_limited(monkeypatch):
    monkeypatch.setattr(decoding, "DEADLINE", 0.3)
    with pytest.raises(SelhnError, match="takes too long"):
        decode_picture(slow_picture(1500, 1500), "a.ppm")
    monkeypatch.undo()
    assert is_well()


@linux
@pytest.mark.parametrize("sent", [signal.SIGSEGV, signal.SIGKILL])
def test_a_decoder_that_crashes_costs_one_picture(sent):
    def crash():
        time.sleep(0.3)
        os.kill(children_of(os.getpid())[-1], sent)

    end_decoders()
    thread = threading.Thread(target=crash)
    thread.start()
    with pytest.raises(SelhnError, match=f"the decoder ended with status -{int(sent)}"):
        decode_picture(slow_picture(1500, 1500), "a.ppm")
    thread.join()
    assert is_well()


def test_a_bug_is_a_traceback(monkeypatch):
    monkeypatch.setitem(decoding.LIMITS, "seconds", "soon")
    with pytest.raises(RuntimeError, match="Traceback"):
        decode_picture(b"x", "a.jpg")


def children_of(number):
    return [int(child) for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


PARENT = """
import json, struct, subprocess, sys, time
child = subprocess.Popen([sys.executable, sys.argv[1], json.dumps(sys.path)], stdin=subprocess.PIPE)
limits = {"most_pixels": 10**8, "seconds": 60, "seconds_per_megapixel": 0, "memory": 2**30, "deadline": 60}
request = json.dumps(limits).encode()
content = sys.stdin.buffer.read()
child.stdin.write(struct.pack("<IQ", len(request), len(content)) + request + content)
child.stdin.flush()
print(child.pid, flush=True)
time.sleep(60)
"""


@linux
@pytest.mark.parametrize("content", [b"", slow_picture(1500, 1500)], ids=["idle", "busy"])
def test_a_decoder_ends_with_its_parent(content):
    command = [sys.executable, "-c", PARENT, decoder.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        parent.stdin.write(content)
        parent.stdin.close()
        child = int(parent.stdout.readline())
        wait_until_it_ignores(child, signal.SIGTERM)
        os.kill(child, signal.SIGTERM)  # to a whole group: the parent decides
        time.sleep(0.1)
        assert is_running(child)
        parent.kill()
    deadline = time.monotonic() + 20
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


def wait_until_it_ignores(number, wanted):
    """A program that was just started has not come as far as that."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ignored = re.search(r"SigIgn:\s*(\w+)", Path(f"/proc/{number}/status").read_text())[1]
        if int(ignored, 16) >> wanted - 1 & 1:
            return
        time.sleep(0.02)
    raise AssertionError("it never ignores the signal")


def is_running(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_a_decoder_starts_without_selhn_and_without_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "PIL.py").write_text("raise SystemExit('a stranger')")
    (tmp_path / "struct.py").write_text("raise SystemExit('a stranger')")
    end_decoders()
    monkeypatch.chdir(tmp_path)
    assert is_well()
    if sys.platform == "linux":
        maps = Path(f"/proc/{children_of(os.getpid())[-1]}/maps").read_text()
        assert "PIL" in maps
        assert "torch" not in maps, "it would take seconds to start"
    end_decoders()
