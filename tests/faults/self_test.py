"""Readers and doors that do wrong in every way that the fuzzer and the drill of strangers look for."""

import os
import shutil
import signal
import subprocess
import tempfile

import torch
from faults.doors import Door
from faults.reader import Reader, files

from selhn.base.errors import Damaged


def make(folder):
    (folder / "file.bin").write_bytes(bytes(range(256)))


def changed(folder):
    path = folder / "file.bin"
    return not path.is_file() or path.read_bytes() != bytes(range(256))


def fails(how):
    return lambda folder: how() if changed(folder) else 0


def raises(error):
    raise error


def for_ever():
    while True:
        pass


READERS = {
    "raises": Reader(make, fails(lambda: {}["x"])),
    "takes memory": Reader(make, fails(lambda: len(bytearray(2**31)))),
    "takes for ever": Reader(make, fails(for_ever)),
    "dies": Reader(make, fails(lambda: os.kill(os.getpid(), signal.SIGSEGV))),
    "changes silently": Reader(make, changed, files("*.bin")),
    "gives NaN": Reader(make, fails(lambda: [torch.tensor(float("nan"))]), finite=True),
    "refuses": Reader(make, fails(lambda: raises(Damaged("it is damaged: copy it again")))),
    "is the same": Reader(make, lambda folder: 0),
}


# Doors, into a folder with a file and a folder


def make_given(place):
    (place.given / "folder" / "inner").mkdir(parents=True)
    (place.given / "folder" / "file.txt").write_text("a file\n")
    (place.given / "folder" / "inner" / "lock").write_text("another\n")


def door(name, do):
    def open_it(place):
        do(place.given / "folder" / "file.txt", place.given / "folder" / "inner")

    return Door(name, "folder", open_it)


def carefully(file, inner):
    """Nothing that is a link is opened; a file is replaced, not changed."""
    if not inner.is_symlink():
        os.listdir(inner)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as new:
        new.write("new\n")
    if not file.is_dir() or file.is_symlink():
        os.replace(new.name, file)


MAKERS = {"folder": make_given}
DOORS = [
    door("reads", lambda file, inner: file.read_text()),
    door(
        "reads without Python",
        lambda file, inner: subprocess.run(["cat", file], timeout=1, capture_output=True),
    ),
    door("lists", lambda file, inner: os.listdir(inner)),
    door("writes", lambda file, inner: file.write_text("new\n")),
    door("removes", lambda file, inner: shutil.rmtree(inner.resolve())),
    door("copies", lambda file, inner: shutil.copy(file, inner.parent / "copied.txt")),
    door("tells", lambda file, inner: print(file.resolve())),
    door("fails", lambda file, inner: {}["x"] if file.is_symlink() else None),
    door("waits", lambda file, inner: for_ever() if file.is_fifo() else None),
    door("is careful", carefully),
]
