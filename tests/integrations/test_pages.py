"""The code of every page in docs/integrations runs, with the real library."""

import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "integrations").glob("*.md"))
LIBRARIES = {
    "accelerate": ["accelerate"],
    "lightning": ["lightning"],
    "open_clip": ["open_clip"],
    "pytorch_metric_learning": ["pytorch_metric_learning"],
    "sentence_transformers": ["sentence_transformers", "datasets", "accelerate"],
    "transformers": ["transformers", "accelerate"],
    "README": [],
    "stuck": [],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_runs(page, library, tmp_path, monkeypatch):
    if LIBRARIES[page.stem]:
        library(*LIBRARIES[page.stem])
    (block,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, page.name, "exec"), {"__name__": "__main__"})
