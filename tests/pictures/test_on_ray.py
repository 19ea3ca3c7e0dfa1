"""`selhn embed --ray`: two nodes, one killed in the middle, and the files of one process. `make ray` runs this."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from picture_cases import encoded, photo

pytest.importorskip("ray", reason="Ray is not installed: make ray")
pytest.importorskip("pyarrow", reason="Parquet needs the extra export")
pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
NUMBER = 200


def content(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run(code, *words):
    root = HERE.parents[1]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{root / 'src'}:{root / 'tests'}:{HERE}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-W", "ignore", *code, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_a_node_is_killed_and_the_files_are_those_of_one_process(tmp_path):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number in range(NUMBER):
        (pictures / f"{number:03}.png").write_bytes(encoded(photo(number, (24, 18)), "PNG"))
    (pictures / "bad.png").write_bytes(b"not a picture")
    alone = "import sys; from ray_program import *; embed_pictures(sys.argv[1], sys.argv[2], **settings())"
    run(["-c", alone], pictures, tmp_path / "one")
    told = json.loads(run([HERE / "ray_program.py"], pictures, tmp_path / "two").splitlines()[-1])
    assert 4 <= told["killed_at"] < 21
    assert (told["rows"], told["left_out"], told["ports"]) == (NUMBER, 1, [])
    assert told["processes"][1].startswith(
        "the cluster has 2 cores and 0 GPUs, which is not enough for 5 processes"
    )
    is_damaged, sentence = told["inputs"]
    assert is_damaged
    assert sentence.startswith(str(tmp_path / "two" / "inputs" / "inputs_0.jsonl"))
    assert "\n" not in sentence
    for name in ("done/done_0.json", "inputs/inputs_0.jsonl"):  # what the last part has damaged
        shutil.copy(tmp_path / "one" / name, tmp_path / "two" / name)
    assert content(tmp_path / "one") == content(tmp_path / "two")
