import atexit
import contextlib
import functools
import inspect
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib.machinery import PathFinder
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import settings
from picture_cases import need_ready_model

# The suite runs in one process a core; more threads than that only fight.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the programs that tests start
# What tests name and decide is not what the user of this machine did.
os.environ["XDG_STATE_HOME"] = STATE = tempfile.mkdtemp(prefix="selhn-tests-")
atexit.register(shutil.rmtree, STATE, ignore_errors=True)
# A shell that starts the suite in the background has it ignore Ctrl-C, which some tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("selhn", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("selhn")


class PlainKernels:
    """Triton compiles the source of its kernels: the checks of types that wrap all other functions stay away."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, path, target) if name.startswith("selhn.kernels.") else None


sys.meta_path.insert(0, PlainKernels)


def checked(function=None, *, typechecker, in_full=jaxtyping.jaxtyped):
    """What wraps every function of the package here: its types and axes are checked when it is called.

    It takes the place of `jaxtyped`, which checks the arguments twice and is slower for the sake of its messages.
    """
    if function is None:
        return functools.partial(checked, typechecker=typechecker)
    if not inspect.isfunction(function) or _is_special(function):
        return in_full(function, typechecker=typechecker)
    with_types = typechecker(function)

    @functools.wraps(function)
    def call(*args, **settings):
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **settings)
        with in_full("context"):  # axes have one length within a call
            return with_types(*args, **settings)

    return call


def _is_special(function):
    """Whether it runs later than it is called, has hints as text, or axes that its arguments decide: `"B {steps}"`."""
    is_later = inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)
    return is_later or any(
        isinstance(hint, str) or "{" in str(hint) for hint in function.__annotations__.values()
    )


assert not any(name.startswith("selhn.losses") for name in sys.modules), (
    "imported before its functions can be wrapped"
)
jaxtyping.jaxtyped = checked


def pytest_collection_modifyitems(config, items):
    """Left out, visibly: tests marked `gpu` where there is none, and those marked `slow` unless markers are named."""
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("slow") and not config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="takes minutes: run with -m slow"))
        if item.get_closest_marker("milvus") and not config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="needs a Milvus server: run `make milvus`"))


@pytest.fixture(scope="module")
def small_dev_and_test():
    """Of generated worlds; `pytest.mark.usefixtures` has it for a file."""
    from run_cases import few_held_out  # which imports selhn: not before `checked` is in its place

    with few_held_out():
        yield


@pytest.fixture
def as_a_user():
    """Switch the shape checks of the test run off, so that a wrong call meets the message a user would meet."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def golden():
    """Arrays recorded from the authors' programs: `golden("loss_selhn")` gives (arrays, config)."""

    def load(name):
        with np.load(Path(__file__).parent / "golden" / f"{name}.npz", allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        return arrays, json.loads(str(arrays.pop("config")))

    return load


@pytest.fixture
def check_golden_loss(golden):
    """Compare a loss and its gradient with every recorded score matrix, in float64."""

    def check(name, loss_fn):
        arrays, config = golden(name)
        assert len(config["matrices"]) == len(arrays["scores"]) > 0
        settings = {"margin", "epsilon", "temperature", "hard_threshold", "weight"}
        for setting in settings & config.keys() & vars(loss_fn).keys():
            setattr(loss_fn, setting, config[setting])
        for matrix, scores, loss, grad in zip(
            config["matrices"], arrays["scores"], arrays["loss"], arrays["grad_scores"], strict=True
        ):
            scores = torch.from_numpy(scores).double().requires_grad_()
            ours = loss_fn(scores)
            ours.backward()
            assert abs(ours.item() - loss) < 1e-12, matrix
            torch.testing.assert_close(scores.grad, torch.from_numpy(grad), rtol=0, atol=1e-12, msg=matrix)
            in_float32 = loss_fn(scores.detach().float())
            assert abs(in_float32.item() - loss) < 1e-6 * max(1, loss), matrix

    return check


@pytest.fixture(scope="session")
def picture_demo(tmp_path_factory):
    """The demo of the example pictures, run once by all processes of the test run: its folder, and what it printed.

    The features of the pictures are in `features` below the folder; others may copy them.
    """
    need_ready_model()
    from selhn.cli.demo import run_picture_demo

    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "picture_demo"
    base.mkdir(exist_ok=True)
    with FileLock(base / "lock"), pytest.MonkeyPatch.context() as patch:
        if not (base / "said.txt").exists():
            patch.setenv("XDG_CACHE_HOME", str(base / "cache"))
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                run_picture_demo(base / "demo")
            (base / "said.txt").write_text(said.getvalue())
        return base / "demo", (base / "said.txt").read_text()


@pytest.fixture
def milvus_server(tmp_path):
    """The uri of a Milvus server in a process of its own, and what starts it, again and again."""
    pytest.importorskip("milvus_lite", reason="tests of Milvus need Milvus Lite")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "milvus_lite",
        "server",
        "--data-dir",
        str(tmp_path / "data"),
        "--port",
        str(port),
    ]
    running = []

    def start():
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for _ in range(300):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    return running[-1]
            time.sleep(0.1)
        raise AssertionError("the server does not start")

    yield f"http://127.0.0.1:{port}", start
    for process in running:
        process.kill()
        process.wait()
