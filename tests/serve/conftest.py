"""Small collections, and servers of them in processes of their own."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
from programs import Program

pytest.importorskip("fastapi", reason="needs selhn[serve]")
HERE = Path(__file__).parent
# A view is shown when its listeners are there: before, what a test types or chooses is lost.
STARTED = "#search-view:not([hidden]), #runs-view:not([hidden]), #routes, #login[open]"
sys.path.append(str(HERE))


@pytest.fixture
def collection(tmp_path):
    from tiny import make_collection

    return make_collection(tmp_path)


@pytest.fixture
def client_of():
    """A client of a service, inside this process."""
    from starlette.testclient import TestClient

    from selhn.serve.app import create_app

    with contextlib.ExitStack() as stack:

        def client(service, **settings):
            return stack.enter_context(
                TestClient(create_app(service, **settings), base_url="http://localhost")
            )

        yield client


@pytest.fixture
def client(collection, client_of):
    """Of a service that may be written to."""
    from selhn.serve.service import Service

    return client_of(Service(collection, writable=True))


class Server:
    """A server in a process of its own."""

    def __init__(self, folder, **settings):
        paths = os.pathsep.join([str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")])
        self.folder = folder
        self.process = Program(
            HERE / "tiny.py",
            folder,
            *(f"{k}={v}" for k, v in settings.items()),
            env={**os.environ, "PYTHONPATH": paths},
        )
        line = self.process.stdout.readline()
        assert line, self.process.said()
        self.port = int(line)
        self.address = f"http://127.0.0.1:{self.port}"

    def memory(self):
        """Bytes that the process holds now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def said(self):
        return self.process.said()

    def stop(self):
        with self.process:
            self.process.send_signal(signal.SIGINT)
            return self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def start_server(tmp_path_factory):
    """Start servers; they end with the tests of the file."""
    started = []

    def start(**settings):
        started.append(Server(tmp_path_factory.mktemp("server"), **settings))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")  # while it is there, no other event loop can run in this thread
def browser():
    from page_driver import CHROMIUM, playwright

    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser):
    """Pages of their own; each must load nothing from elsewhere, and say no error."""
    opened, wrong = [], []

    def open_one(address, expect_errors=False, **settings):
        context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **settings}
        )
        context.set_default_timeout(20_000)
        opened.append(context)
        page = context.new_page()
        host = address.split("/")[2].split("#")[0]
        page.on(
            "request",
            lambda request: (
                host in request.url or request.url.startswith("blob:") or wrong.append(request.url)
            ),
        )
        page.on("pageerror", lambda error: wrong.append(str(error)))
        if not expect_errors:
            page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
        page.goto(address)
        page.wait_for_selector(STARTED, state="attached")
        return page

    yield open_one
    for context in opened:
        context.close()
    assert not wrong


@pytest.fixture
def page(open_page, server):
    """The first page of the server of the test's own file, with pictures in it."""
    page = open_page(server.address)
    page.wait_for_selector(".open")
    return page
