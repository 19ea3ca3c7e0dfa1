"""The notebook runs, from data to a verdict and a search.

`python tests/test_notebook.py` runs it in full and writes what its cells print and draw into it, a minute.
"""

import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path

import torch

NOTEBOOK = Path(__file__).parents[1] / "examples" / "tour.ipynb"
SIZES = "IMAGES, EPOCHS = 1000, 5"


def execute(cells, sizes=SIZES):
    """The outputs of every cell, as a notebook keeps them."""
    names = {}
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        *body, last = ast.parse("".join(cell["source"]).replace(SIZES, sizes)).body
        shown = isinstance(last, ast.Expr) and not ast.unparse(last).startswith("print(")
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(body if shown else [*body, last], []), "cell", "exec"), names)
            if shown:
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        yield cell, [*as_stream(printed.getvalue()), *as_data(value)]


def as_stream(text):
    return [{"output_type": "stream", "name": "stdout", "text": text.splitlines(True)}] if text else []


def as_data(value):
    if value is None:
        return []
    data = {"text/plain": [repr(value)]}
    if hasattr(value, "_repr_png_"):
        data = {"image/png": base64.b64encode(value._repr_png_()).decode(), "text/plain": ["a picture"]}
    return [{"output_type": "display_data", "metadata": {}, "data": data}]


def test_the_notebook_runs(tmp_path, monkeypatch, small_dev_and_test, as_a_user):
    monkeypatch.chdir(tmp_path)
    text = NOTEBOOK.read_text()
    assert text.count(SIZES) == 1
    with torch.random.fork_rng(devices=[]):  # the notebook sets the seed
        done = list(execute(json.loads(text)["cells"], "IMAGES, EPOCHS = 16, 1"))
    said = ["".join(one.get("text", "")) for _, outputs in done for one in outputs]
    assert sum(" | rsum " in one for one in said) == 2
    assert sum("What helps: " in one for one in said) == 2, "two verdicts"
    assert "test-scene-" in "".join(said[-2:]), "and a search"


def test_what_is_kept_was_printed_by_these_cells():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells), "run python tests/test_notebook.py"
    said = "".join("".join(one.get("text", "")) for cell in cells for one in cell["outputs"])
    assert "stalled since step" in said
    assert said.count(" | rsum ") == 2


def write():
    notebook = json.loads(NOTEBOOK.read_text())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, (cell, outputs) in enumerate(execute(notebook["cells"]), 1):
            cell["outputs"], cell["execution_count"] = outputs, number
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
