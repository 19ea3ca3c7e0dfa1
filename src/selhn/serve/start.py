"""`selhn serve`: open an index or runs, and answer until stopped."""

import ctypes
import gc
import importlib.util
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from selhn.base.errors import MissingExtra, SelhnError, pip_install

if TYPE_CHECKING:
    from selhn.serve.limits import Limits
    from selhn.serve.service import Service

PACKAGES = ("fastapi", "uvicorn")


def serve(
    path: Path | str | None = None,
    *,
    examples: bool = False,
    runs: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    no_token: bool = False,
    hostnames: list[str] | None = None,
    attention: Path | None = None,
    writable: bool = False,
    model: Path | None = None,
    extractor: str | None = None,
    folders: Iterable[Path] = (),
) -> None:
    """Serve an index (a folder or a server), the example pictures, or training runs, until Ctrl-C.

    Args:
        token: by default SELHN_TOKEN, or else a new one, which the link has that is printed; see `no_token`.
        folders: whose pictures may be shown; those of `selhn index` and `selhn photos` are known.
    """
    missing = missing_packages(PACKAGES)
    if missing:
        raise MissingExtra(f"the service needs {missing}: {pip_install('serve')}")
    from selhn.pictures.named_folders import require_folders
    from selhn.serve.access import Token
    from selhn.serve.service import Service

    access, named = Token.find(host, token, no_token), require_folders(folders)
    with listen(host, port) as listening:
        service = Service.open(
            path,
            examples=examples,
            runs=runs,
            attention=attention,
            writable=writable,
            model=model,
            extractor=extractor,
            folders=named,
        )
        asks = " (the page asks for the token)" if access.value and not access.is_made else ""
        address = address_of(host, listening)
        print(
            f"{service.name}: {access.shown(address)}{asks}\nThe API is described at {address}/docs. Ctrl-C stops.",
            flush=True,
        )
        answer(service, listening, access.value, hostnames)


def missing_packages(names: Sequence[str]) -> str:
    """The packages that are not installed, in words; `a|b` means that either is enough."""
    missing = [
        name.split("|")[0] for name in names if not any(map(importlib.util.find_spec, name.split("|")))
    ]
    return " and ".join([", ".join(missing[:-1]), missing[-1]] if len(missing) > 1 else missing)


def answer(
    service: "Service", listening: socket.socket, token: str | None, hostnames: Sequence[str] | None = None
) -> None:
    """Answer on a socket until stopped."""
    from selhn.serve.app import create_app

    gc.freeze()  # models stay until the end; to scan them then would take half a second
    run_server(create_app(service, token=token, hosts=hostnames or []), listening, service.limits)


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
        reason = str(wrong.strerror or wrong).partition(" (while")[0]  # the address would be there twice
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
    """Give the memory of large bodies back to the system once they are answered, if the C library can do it.

    Otherwise glibc keeps it from the second one on, in pieces that later bodies may not fit into.
    """
    with suppress(OSError, AttributeError):  # not glibc
        mmap_threshold = -3
        ctypes.CDLL(None).mallopt(mmap_threshold, 4 * 2**20)


def address_of(host: str, listening: socket.socket) -> str:
    """The address of the page."""
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    shown = "127.0.0.1" if shown in ("0.0.0.0", "[::]") else shown
    return f"http://{shown}:{listening.getsockname()[1]}"
