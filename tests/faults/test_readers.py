"""The table of readers is complete: every function that opens or parses a file is entered by a row."""

import json

from faults.drill import run_drill
from faults.read_calls import PACKAGE, reading_functions

DECODER = (
    "decoder.py::_statm",
    "decoder.py::answer",
    "picture_headers.py::open_image",
    "video_frames.py::_opened",
)
OURS = {
    "pictures/backbones.py::__init__": "weights of installed packages, or named by the user",
    **{f"pictures/{name}": "in a process of its own, by every row of a picture" for name in DECODER},
    "pictures/two_towers.py::__init__": "read by other libraries, and named by the user",
    "pictures/two_towers.py::_open": "read by other libraries, and named by the user",
    **{
        f"base/minilm.py::{name}": "files of an installed package, each compared with its SHA-256"
        for name in ("_opened", "minilm_file")
    },
    **{
        f"towers/ready/{name}": "shipped, or written to the user's cache; compared with checksums"
        for name in (
            *("__init__.py::_made", "__init__.py::checksum", "__init__.py::ready_config"),
            *("assembly.py::description", "assembly.py::write_towers"),
        )
    },
    "pictures/efficientnet_lite.py::load_network": "shipped with the package, compared with its SHA-256",
    "pictures/efficientnet_lite.py::published_weights": "weights of an installed package, compared with their SHA-256",
    "models/pixels.py::_of_transformers": "read by another library, and named by the user",
    "pictures/dataset.py::_content": "named by the rows of the caller; decoded later, as every row of a picture",
    "pictures/indexing.py::example_facts": "shipped with the package",
    "pictures/ready.py::load_ready_model": "shipped with the package",
    "pictures/ready.py::load_ready_projection": "shipped with the package",
    "reproduce/comparison.py::reproduce": "reads back the page that it has just written, to print it",
    "reproduce/comparison.py::write_page": "joins the pages that it has just written",
    "reproduce/paper_figures.py::copy_drawing": "shipped with the package",
    "reproduce/tables.py::paper_rows": "shipped with the package",
    "base/errors.py::pip_install": "what pip wrote beside the installed package",
    "data/concepts.py::write_concepts": "changes the data.json of a data set that it has just read",
    "export/calibration.py::write_cutoff": "changes the towers.json of a folder that it has just read",
    "export/tokenizers.py::_small": "text that the library has just given",
    "export/towers.py::export_towers": "reads back what it has just written",
    "towers/first_run.py::_limit": "says how large this process is",
    "towers/first_run.py::main": "what the process that started this one asks for",
    "base/files.py::sync_file": "opens a file to write it through; reads nothing",
    "runs/weights.py::load_weights": "by read_tensors, which other rows enter, of a model that only its program makes",
    "base/files.py::sync_folder": "opens a folder to write it through; reads nothing",
    "base/files.py::_remove_unlocked": "opens a hidden file to lock it; reads nothing",
    "cli/answers.py::answer_tiles": "a JPEG that was drawn just before",
    "serve/app.py::_serve_page": "shipped with the package",
}
"""Functions that read only what is not a stranger's, and why."""


def test_every_function_that_reads_a_file_is_in_the_table():
    entered = {(file, line) for file, line in json.loads(run_drill("entered"))}
    reading = reading_functions()
    names = {f"{file}::{name}" for (file, _), name in reading.items()}
    assert len(reading) > 60, "the rule finds functions"
    missing = [f"{file}::{name}" for (file, line), name in reading.items() if (file, line) not in entered]
    new = sorted(set(missing) - set(OURS))
    assert not new, (
        f"no row of tests/faults enters {', '.join(new)}: add a reader, or say in OURS why none is needed"
    )
    assert not set(OURS) - names, "no longer there: remove it from OURS"


def test_the_rule_finds_what_opens_a_file(tmp_path, monkeypatch):
    source = """
def reads(path):
    with path.open("rb") as file:
        return json.loads(file.read())

def writes(path):
    with path.open("w") as file:
        json.dump({}, file)

class Index:
    @classmethod
    def open(cls):
        return Index.open(1)

def outer(path):
    def inner():
        return load_file(path)
    return inner

def safe(path):
    return safe_load(path)
"""
    (tmp_path / "a.py").write_text(source)
    monkeypatch.setattr("faults.read_calls.PACKAGE", tmp_path)
    assert sorted(reading_functions().values()) == ["inner", "reads", "safe"]
    assert PACKAGE.name == "selhn"
