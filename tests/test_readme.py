"""Every block of the README does what it says, and every command of the tutorials."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import ExifTags, Image
from programs import Program, run

from selhn.pictures.examples import ANNOTATIONS, PICTURES

ROOT = Path(__file__).parents[1]
TUTORIALS = ("docs/first_model.md", "docs/cure.md", "docs/reproduce_table.md", "docs/photographs.md")
PAGES = [(ROOT / name).read_text() for name in ("README.md", *TUTORIALS)]
BLOCKS, *OTHERS = (
    re.findall(r"^```(\w*)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL) for page in PAGES
)
PHOTOGRAPHS = OTHERS.pop()
TINY = "selhn reproduce table1 --tiny --out tiny"  # nine runs: tests/reproduce has them


def test_every_block_has_a_known_language():
    assert {language for language, _ in BLOCKS} <= {"python", "bash", "bibtex"}
    assert len(BLOCKS) > 5


def test_python_blocks_run_in_order(tmp_path):
    # In a process of its own, as a reader would run them: without the shape checks of this test run.
    code = "import torch\ntorch.set_num_threads(1)\n" + "\n".join(
        block for language, block in BLOCKS if language == "python"
    )
    done = run("-W", "error", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


SHELL_BLOCKS = [block for language, block in sum(OTHERS, BLOCKS) if language == "bash"]
SHELL_LINES = list(dict.fromkeys(line for block in SHELL_BLOCKS for line in block.splitlines() if line))
SERVE_LINES = [line for line in re.findall(r"`([^`\n]+)`", PAGES[0]) if line.startswith("selhn serve")]
PICTURE_LINES = [line for block in SHELL_BLOCKS if "~/Pictures" in block for line in block.splitlines()]


def run_line(line, arguments, monkeypatch, capsys):
    from selhn.cli import main

    monkeypatch.setattr(sys, "argv", ["selhn", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    assert not stop.value.code, f"{line}: {said.err}"
    return said.out


@pytest.mark.parametrize("line", [line for line in SHELL_LINES if not line.startswith("selhn ")])
def test_set_up_lines_are_real(line):
    program, *arguments = shlex.split(line)
    if program == "make":  # the targets themselves run this test and the demo
        command = ["make", "--dry-run", *arguments]
    elif program == "pip":
        command = [
            sys.executable,
            "-m",
            "pip",
            *arguments,
            "--dry-run",
            "--no-deps",
            "--no-build-isolation",
            "--quiet",
        ]
    else:
        pytest.fail(f"say here how to test: {line}")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_selhn_lines_run_in_order(small_dev_and_test, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["data.images=100", "epochs=1", "model.dim=16", "batch_size=64", "device=cpu"]
    lines = ["selhn data import world path/to/f30k_precomp images=100", *SHELL_LINES]
    said = ""
    left_out = [TINY, *PICTURE_LINES, *SERVE_LINES]
    for line in [line for line in lines if line.startswith("selhn ") and line not in left_out]:
        _, *arguments = shlex.split(line)
        if arguments[0] == "train" and "=" in line:  # the same line, on less data: later settings win
            at = max(i for i, word in enumerate(arguments) if "=" in word) + 1
            arguments[at:at] = small
        said += run_line(line, arguments, monkeypatch, capsys)
    assert "scene-" in said


def test_the_lines_on_pictures_run_in_order(tmp_path, monkeypatch, capsys, picture_demo):
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    take_minilm(picture_demo, tmp_path / ".cache")
    (tmp_path / "Pictures").mkdir()
    for file, name in {
        "000000377575.jpg": "dog.jpg",
        "000000361919.jpg": "ski.jpg",
        "000000214753.jpg": "ride.jpg",
    }.items():
        shutil.copy(PICTURES / file, tmp_path / "Pictures" / name)
    with Image.open(tmp_path / "Pictures" / "dog.jpg") as dog:
        dog.getexif().get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = "2019:07:01 12:00:00"
        dog.save(tmp_path / "Pictures" / "dog.jpg", exif=dog.getexif(), quality="keep")
    monkeypatch.chdir(tmp_path)
    photos, *lines = [
        shlex.split(line.replace("~", str(tmp_path)), comments=True)[1:] for line in PICTURE_LINES[1:]
    ]
    index_while_served(photos, tmp_path)
    assert lines.pop() == ["demo", "--pictures"]  # the fixture is what it makes
    said = [run_line(" ".join(line), line, monkeypatch, capsys) for line in lines]
    assert re.match(r".* 1 +0\.\d+  Pictures/ski.jpg", said[0], flags=re.DOTALL)
    assert re.match(r" 1 +0\.\d+  Pictures/ride.jpg", said[1])
    assert (tmp_path / "found.png").stat().st_size > 10_000
    assert "dog.jpg" in said[2]
    assert "ski.jpg" not in said[2]
    assert "the first answer\nin 45% of the searches, and among the first five in 82%" in picture_demo[1], (
        "as the README says"
    )


def test_the_tutorial_on_photographs_has_lines_of_the_readme():
    own = [line for language, block in PHOTOGRAPHS if language == "bash" for line in block.splitlines()]
    known = [shlex.split(line, comments=True) for line in PICTURE_LINES]
    assert len(own) == 5
    for line in own:
        assert shlex.split(line) in known or line.startswith("pip install --constraint constraints.txt"), line


def take_minilm(picture_demo, cache):
    """The text model that the demo has unpacked, so that it is not unpacked again."""
    for folder in (picture_demo[0].parent / "cache" / "selhn").glob("minilm-*"):
        shutil.copytree(folder, cache / "selhn" / folder.name, copy_function=os.link)


def index_while_served(arguments, home):
    """`selhn photos` until its three pictures are indexed."""
    httpx = pytest.importorskip("httpx")
    command = ["-m", "selhn", *arguments, "--no-browser", "--port", "0"]
    with Program(*command, env={**os.environ, "HOME": str(home)}, cwd=home) as served:
        found = next(
            re.search(r"(http://\S+)/#token=(\S+)", line) for line in served.stdout if "http://" in line
        )
        address, known = found[1], {"Authorization": f"Bearer {found[2]}"}
        for _ in range(600):
            items = httpx.get(f"{address}/api/v1/items", headers=known, timeout=60).json()["total"]
            told = httpx.get(f"{address}/api/v1/progress", headers=known, timeout=60).json()
            if items == 3 and told["state"] == "idle":
                break
            time.sleep(0.1)
        else:
            pytest.fail(f"{items} of 3 pictures after a minute")
        served.send_signal(signal.SIGINT)
        assert served.wait(60) == 0, served.said()


FEWER = """
import pathlib, sys
from selhn.pictures import indexing
indexing.PICTURES = pathlib.Path(sys.argv.pop(1))
indexing.ANNOTATIONS = indexing.PICTURES / "annotations.json"
from selhn.cli import main
main()
"""


@pytest.mark.parametrize("line", SERVE_LINES)
def test_the_page_is_served(line, tmp_path, picture_demo):
    pytest.importorskip("fastapi")
    shutil.copytree(picture_demo[0] / "features", tmp_path / "selhn" / "features")
    take_minilm(picture_demo, tmp_path)
    few, known = tmp_path / "pictures", json.loads(ANNOTATIONS.read_text())  # of the 76, for the sake of time
    known = [one for one in known if one["file"] == "000000361919.jpg"] + known[:8]
    few.mkdir()
    for one in known:
        shutil.copy(PICTURES / one["file"], few)
    (few / "annotations.json").write_text(json.dumps(known))
    httpx = pytest.importorskip("httpx")
    env = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    with Program("-c", FEWER, few, *shlex.split(line)[1:], "--port", "0", env=env, cwd=tmp_path) as served:
        said = next(line for line in served.stdout if "http://" in line)
        assert said.startswith("Example pictures: http://127.0.0.1:")
        address, _, token = said.split()[-1].partition("/#token=")
        known = {"Authorization": f"Bearer {token}"}
        assert "<title>selhn</title>" in httpx.get(address).text
        asked = {"text": "people skiing in the snow", "k": 1}
        answered = httpx.get(f"{address}/api/v1/search", params=asked, headers=known, timeout=60)
        (found,) = answered.json()["answers"]
        assert "ski" in found["captions"][0]
        assert found["metadata"]["license"].startswith("CC BY")
        asked = {"id": found["id"]}
        picture = httpx.get(f"{address}/api/v1/picture", params=asked, headers=known, timeout=60)
        assert picture.headers["content-type"] == "image/jpeg"
        served.send_signal(signal.SIGINT)
        assert served.wait(60) == 0, served.said()


def test_the_bibtex_entry_is_the_citation():
    entry = next(block for language, block in BLOCKS if language == "bibtex")
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.search(r"title   = \{(.*)\}", entry).group(1) in citation
    assert "2303.00181" in citation


def test_linked_files_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target
