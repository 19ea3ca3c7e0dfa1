"""`selhn serve`: open an index or runs, and answer until stopped."""

import ctypes
import importlib.util
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from selhn.base.errors import MissingExtra, SelhnError, pip_install

if TYPE_CHECKING:
    from selhn.serve.limits import Limits

TOKEN_VARIABLE = "SELHN_TOKEN"


def serve(
    path: Path | str | None = None,
    *,
    examples: bool = False,
    runs: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    hostnames: list[str] | None = None,
    attention: Path | None = None,
    writable: bool = False,
    model: Path | None = None,
    extractor: str | None = None,
) -> None:
    """Serve an index (a folder or a Milvus URI), the example pictures, or training runs, until Ctrl-C."""
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(f"the service needs {' and '.join(missing)}: {pip_install('serve')}")
    from selhn.serve.app import create_app
    from selhn.serve.guard import is_loopback
    from selhn.serve.service import Service

    token = token or os.environ.get(TOKEN_VARIABLE) or None
    if not is_loopback(host) and token is None:
        raise SelhnError(
            f"on {host} other machines can reach the service and see every picture: set a token with --token "
            f"or {TOKEN_VARIABLE}, or use --host 127.0.0.1"
        )
    with listen(host, port) as listening:
        service = Service.open(
            path,
            examples=examples,
            runs=runs,
            attention=attention,
            writable=writable,
            model=model,
            extractor=extractor,
        )
        app = create_app(service, token=token, hosts=hostnames or [])
        print(_greeting(service.name, host, listening.getsockname()[1], token is not None), flush=True)
        run_server(app, listening, service.limits)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; opened first, so that a wrong address fails at once."""
    host = host.strip("[]")
    try:
        if not 0 <= port < 2**16:
            raise OSError(0, "there is no such port")
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=256)
        # asyncio sets this only on sockets that name their protocol, which those of create_server do not.
        # Connections inherit it; without it the body of an answer waits 40 ms until its head is confirmed.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as wrong:
        reason = wrong.strerror or wrong
        told = f"cannot listen on {host}:{port} ({reason}): choose another --port or --host"
        raise SelhnError(told) from None


def run_server(app: object, listening: socket.socket, limits: "Limits") -> None:
    """Answer on a socket until a signal comes; answers in progress are finished first."""
    import uvicorn

    from selhn.serve.connections import ImpatientProtocol, Listening
    from selhn.serve.log import log_sparingly

    log_sparingly()
    return_large_memory()
    gate = Listening(listening, limits.connections)
    settings = {"seconds": limits.head_seconds, "listening": gate}
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=type("Protocol", (ImpatientProtocol,), settings),
        loop="asyncio",  # uvloop accepts connections without asking the socket
        ws="none",
        lifespan="on",
        access_log=False,  # queries are private
        log_config=None,
        log_level="error",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections + 1,  # where asyncio does not ask the socket: on Windows
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=64 * 2**10,
    )
    try:
        uvicorn.Server(config).run(sockets=[gate])
    except KeyboardInterrupt:
        print("\nStopped.")


def return_large_memory() -> None:
    """Give the memory of large bodies back to the system as soon as they are answered, where the C library can.

    Otherwise glibc keeps it from the second one on, in pieces that later bodies may not fit into.
    """
    with suppress(OSError, AttributeError):  # not glibc
        mmap_threshold = -3
        ctypes.CDLL(None).mallopt(mmap_threshold, 4 * 2**20)


def _greeting(name: str, host: str, port: int, with_token: bool) -> str:
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    shown = "127.0.0.1" if shown in ("0.0.0.0", "[::]") else shown
    asks = " (the page asks for the token)" if with_token else ""
    address = f"http://{shown}:{port}"
    return f"{name}: {address}{asks}\nThe API is described at {address}/docs. Ctrl-C stops."
