"""Readers that do wrong in every way that the fuzzer looks for."""

import os
import signal

import torch
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
