"""What is built for others: the wheel and the source archive, and the wheel in an empty environment."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from selhn import __version__

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.10", "python3.11", "python3.12", "python3.13")


def call(*command, cwd=None):
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # not the checkout
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=cwd, env=own)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (?!Unreleased)(\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest[1] == __version__


def test_the_wheel_has_the_package_and_nothing_else(built):
    (wheel,) = built.glob(f"selhn-{__version__}-*.whl")
    files = {
        path
        for path in (ROOT / "src" / "selhn").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {
            name for name in archive.namelist() if not name.startswith(f"selhn-{__version__}.dist-info/")
        }
    assert names == {path.relative_to(ROOT / "src").as_posix() for path in files}


def test_the_source_archive_can_test_itself(built):
    with tarfile.open(built / f"selhn-{__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    top = {
        "Makefile",
        "locked.txt",
        "constraints.txt",
        "pyproject.toml",
        "mkdocs.yml",
        "README.md",
        "LICENSE",
    }
    assert top | {"tests/conftest.py", "docs/train.md", "benchmarks/loss.py", "examples/stall.py"} <= names


@pytest.mark.slow
def test_the_source_archive_in_an_empty_environment(built, tmp_path):
    """What it needs is found in the environment of the tests; selhn itself is built from the archive."""
    call(sys.executable, "-m", "venv", tmp_path / "env")
    own, home = tmp_path / "env" / "bin", "import site; print(site.getsitepackages()[0])"
    (Path(call(own / "python", "-c", home).strip()) / "tests.pth").write_text(
        call(sys.executable, "-c", home)
    )
    archive = built / f"selhn-{__version__}.tar.gz"
    call(
        own / "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--ignore-installed", archive
    )
    assert call(own / "selhn", "--version", cwd=tmp_path) == f"selhn {__version__}\n"
    where = call(own / "python", "-c", "import selhn; print(selhn.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path / "env"))
    assert " | rsum " in call(own / "python", "-W", "error", "-c", "\n".join(readme_blocks()), cwd=tmp_path)


def readme_blocks():
    pages = "\n".join((ROOT / page).read_text() for page in ("README.md", "docs/first_model.md"))
    return re.findall(r"^```python\n(.*?)^```", pages, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_in_an_empty_environment(built, python, tmp_path):
    if not shutil.which(python) or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip(f"{python} is not installed")
    (wheel,) = built.glob("*.whl")
    call(python, "-m", "venv", tmp_path / "env")
    own = tmp_path / "env" / "bin"
    call(
        own / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", f"{wheel}[search,serve]"
    )
    assert call(own / "selhn", "--version", cwd=tmp_path) == f"selhn {__version__}\n"
    assert " | rsum " in call(own / "python", "-W", "error", "-c", "\n".join(readme_blocks()), cwd=tmp_path)
    assert "the first answer" in call(own / "selhn", "demo", "--pictures", cwd=tmp_path)
