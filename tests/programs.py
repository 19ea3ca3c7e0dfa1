"""Programs that tests start, forked from one process that has imported torch and selhn.

A Python that imports both needs two to four seconds of a core before it does anything, and the tests start dozens.
`Program` and `run` take the place of `subprocess` for them: arguments, environment, folder, streams, signals and exit
status are the program's own. Where the start itself is tested (what it imports, how long it takes), use `subprocess`.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
OWN = [str(HERE.parent / "src"), str(HERE)]
IMPORTED = [
    "torch._dynamo",
    "selhn.cli.demo",
    "selhn.export",
    "selhn.report",
    "selhn.serve.app",
    "selhn.serve.start",
]


class Program:
    """`python ARGUMENTS`, as `subprocess.Popen` would start it; what it writes to `stderr` is kept in a file."""

    def __init__(self, *arguments, cwd=None, env=None, stderr=None):
        env = {"PYTHONPATH": OWN[0], **(os.environ if env is None else env)}
        self.args = [str(word) for word in arguments]
        self.errors = stderr or tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.returncode = None
        read, write = os.pipe()
        self.stdout = open(read, encoding="utf-8")  # noqa: SIM115
        self._told, theirs = socket.socketpair()
        with theirs, open(os.devnull) as nothing:
            job = json.dumps({"arguments": self.args, "cwd": str(cwd or Path.cwd()), "env": env}).encode()
            streams = [theirs.fileno(), nothing.fileno(), write, self.errors.fileno()]
            socket.send_fds(_server(), [len(job).to_bytes(4, "big")], streams)
            _server().sendall(job)
        os.close(write)
        self.pid = int.from_bytes(self._told.recv(4), "big")

    def poll(self):
        return self._ended(0)

    def wait(self, timeout=None):
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _ended(self, timeout):
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            told = self._told.recv(4)
            assert told, "the process that starts programs is gone"
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(told, "big"))
            self._told.close()
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def said(self):
        """What it has written to `stderr`."""
        return os.pread(self.errors.fileno(), 1 << 20, 0).decode()

    def communicate(self, timeout=None):
        """Wait for its end; what it wrote, which must not be more than a pipe holds."""
        self.wait(timeout)
        return self.stdout.read(), self.said()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.wait(60)
        self.stdout.close()
        self.errors.close()


def run(*arguments, timeout=300, **settings):
    """Like `subprocess.run([sys.executable, ...], capture_output=True, text=True)`."""
    with Program(*arguments, **settings) as program:
        out = program.stdout.read()
        code = program.wait(timeout)
        return subprocess.CompletedProcess(program.args, code, out, program.said())


@cache
def _server():
    ours, theirs = socket.socketpair()
    with theirs:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(OWN)}
        command = [sys.executable, __file__, str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=environment, start_new_session=True
        )

    def end():
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def serve(channel):
    """Fork for each job until nobody asks any more; returns the job in the process that has to do it."""
    for name in IMPORTED:
        with suppress(ModuleNotFoundError):  # an extra that is not installed
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is here already is never looked at again, and its pages stay shared
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    started = {}
    while True:
        ready, _, _ = select.select([channel, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            with suppress(ChildProcessError):
                while any(ended := os.waitpid(-1, os.WNOHANG)):
                    with started.pop(ended[0]) as told, suppress(OSError):
                        told.sendall(ended[1].to_bytes(4, "big"))
        if channel in ready:
            head, streams, _, _ = socket.recv_fds(channel, 4, 4)
            if not head:
                sys.exit()
            job = json.loads(channel.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
            told = socket.socket(fileno=streams.pop(0))
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for end in (woken, wake):
                    os.close(end)
                for other in (told, *started.values()):
                    other.close()
                return job, streams
            for stream in streams:
                os.close(stream)
            started[pid] = told
            told.sendall(pid.to_bytes(4, "big"))


def become(job, streams):
    """Be as a Python that was just started; returns what it runs and its name."""
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    arguments = job["arguments"]
    while arguments[0] == "-W":
        warnings.simplefilter(arguments[1])
        del arguments[:2]
    kind = arguments.pop(0) if arguments[0] in ("-c", "-m") else ""
    what = arguments[0]
    sys.argv = ["-c" if kind == "-c" else what, *arguments[1:]]
    paths = filter(None, job["env"].get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [
        "" if kind else str(Path(what).parent),
        *paths,
        *(path for path in sys.path if path not in OWN),
    ]
    return kind, what


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        kind, what = become(*serve(channel))
    if kind == "-c":
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
    elif kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(what, run_name="__main__")
