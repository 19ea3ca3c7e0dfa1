"""Pages that are written from the program say what the program says, and their links lead somewhere."""

import ast
import importlib.util
import json
import posixpath
import re
from pathlib import Path

import pytest
import torch
from programs import run

from selhn.data import check
from selhn.diagnose import read_foreign
from selhn.losses import LOSSES
from selhn.models import MODELS
from selhn.reproduce import FIGURES, TABLES
from selhn.search.stores.vectors import Vectors

DOCS = Path(__file__).parents[1] / "docs"


def load(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_losses_is_up_to_date():
    text = (DOCS / "losses.md").read_text()
    assert load("losses").page(text) == text, "run python docs/losses.py"


def test_every_loss_is_in_the_table_with_its_references():
    generated = load("losses").generated()
    for name in LOSSES:
        assert generated.count(f"| `{name}` |") == 1
        assert re.search(rf"^- `{name}`: \S.{{20,}}\d{{4}}", generated, flags=re.MULTILINE), (
            f"{name} refers to nothing"
        )


def test_the_table_of_models_has_every_model_once():
    rows = [line for line in (DOCS / "models.md").read_text().splitlines() if line.startswith("| `")]
    named = [name for line in rows for name in re.findall(r"`(\w+)`", line.split(" | ")[0])]
    assert sorted(named) == sorted(MODELS)


def test_the_backward_pass_of_a_loss():
    losses = load("losses")
    cells = {
        name: losses.row(name, LOSSES[name])[3] for name in ("hn", "triplet", "selhn", "infonce", "warmup")
    }
    assert cells == {
        "hn": "few",
        "triplet": "all",
        "selhn": "some",
        "infonce": "all",
        "warmup": "few, all while warming up",
    }


def test_the_chooser_names_losses_that_exist():
    chooser = (DOCS / "losses.md").read_text().split("## All of them")[0]
    rows = [line.split(" | ") for line in chooser.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) > 10
    named = set(re.findall(r"`(\w+)`", " ".join(" ".join(row) for row in rows))) - {"image_ids", "epsilon"}
    assert named <= set(LOSSES)


def test_the_probe_of_the_page_writes_what_can_be_diagnosed(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "diagnose.md").read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    log = read_foreign("probe.jsonl")
    assert log.steps.tolist() == [1, 11, 21]
    table = re.findall(r"^\| (`.*?) \|", (DOCS / "diagnose.md").read_text(), flags=re.MULTILINE)
    named = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    assert {name for name in log.columns if not name.startswith(("grad_", "loss"))} - named == {
        "rank_texts",
        "spread_texts",
    }


@pytest.mark.parametrize(("page", "number"), [("search.md", 3), ("scale.md", 1), ("export.md", 1)])
def test_a_page_does_what_it_says(page, number, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == number
    code = "\n".join(["import torch", "torch.set_num_threads(1)", *blocks])
    done = run("-W", "error", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def test_small_pages_do_what_they_say(tmp_path):
    pages = [
        (DOCS / page).read_text()
        for page in ("metrics.md", "protocols.md", "losses.md", "first_model.md", "own.md")
    ]
    blocks = re.findall(r"^```python\n(.*?)^```", "\n".join(pages), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    done = run(
        "-W", "error", "-c", "\n".join(["import torch", "torch.set_num_threads(1)", *blocks]), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-2000:]
    shown = re.search(r"print\(metrics\) +# (.*)", pages[0]).group(1)
    assert shown in done.stdout, "the row shown is the row printed"


def test_the_example_of_the_page_on_data_is_data(tmp_path, monkeypatch):
    """What the Python block writes can be used, and so can the data.json that the page shows."""
    page = (DOCS / "data.md").read_text()
    (shown,) = re.findall(r"^```json\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[1], {})
    assert check("mine").ok
    (tmp_path / "mine" / "data.json").write_text(shown)
    assert check("mine").ok


def rows_of(page, heading):
    """The table of a section, without its first two lines."""
    section = (DOCS / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [[cell.replace(",", "") for cell in line] for line in lines[2:]]


def test_the_sizes_of_the_page_on_scale():
    """Computed from what vectors are kept as, and from the measured time of extraction."""
    vectors = torch.rand(2, 1024)
    for pictures, *sizes in rows_of("scale.md", "Space"):
        for precision, size in zip(("float32", "float16", "int8"), sizes):
            kept = Vectors.of(vectors, precision)
            of_one = kept.rows[0].nbytes + (0 if kept.scale is None else kept.scale[0].nbytes)
            assert size == f"{int(pictures) * of_one / 1e9:.1f}"
    results = (DOCS.parent / "benchmarks" / "results" / "2026-11-16-extraction-cpu.md").read_text()
    rate = float(re.search(r"^\| after +\| +[\d.]+ \| +([\d.]+)", results, flags=re.MULTILINE)[1])
    for pictures, hours in rows_of("scale.md", "Work"):
        assert int(hours) == round(int(pictures) / rate / 3600)


def test_what_the_page_on_scale_calls_measured_was_measured():
    page = (DOCS / "scale.md").read_text()
    folder = DOCS.parent / "benchmarks" / "results"
    for file, numbers in [
        ("2026-11-15-search-cpu.md", ["191.9", "16.62", "15.6", "5.97", "0.998", "447", "436", "404"]),
        ("2026-11-15-search-cpu.md", ["298.6", "20.47", "10.8", "3.74", "709"]),
        ("2026-11-15-search-cuda.md", ["2.65", "6.83"]),
        ("2026-11-16-embedding-read-cpu.md", ["91", "223"]),
        ("2026-11-17-ranks-cpu.md", ["262.8", "253.6", "259.9", "252.5", "59"]),
        ("2026-11-18-ranks-cuda.md", ["5,806", "1,617"]),
        ("2026-11-17-embedding-ray-cpu-start.md", ["11.6", "1.1"]),
        ("2026-11-17-stores-cpu-million.md", ["779", "20.1", "0.07", "424.0", "1.000", "2,177", "4,397"]),
        ("2026-11-16-stores-cpu.md", ["14.5", "1676.9"]),
        ("2026-11-18-stores-cpu.md", ["12.7", "62.8", "60.96", "3.0", "12.6", "1,385", "5.60"]),
    ]:
        measured = (folder / file).read_text()
        for number in numbers:
            assert re.search(rf"(?<![\d.,]){re.escape(number)}(?!\d|[.,]\d)", measured), (
                f"{number} is not in {file}"
            )
            assert re.search(rf"(?<![\d.,]){re.escape(number)}(?!\d|[.,]\d)", page), (
                f"{number} is not on the page"
            )


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            there = (page.parent / file).resolve() if file else page
            assert there.exists(), f"{target} is not there"
            assert not anchor or anchor in anchors(there), f"{target} has no such heading"


def test_every_page_is_in_the_site_and_its_links_stay_there():
    found = load("site").collect()
    named = re.findall(r": ([\w/]+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    tables = {name for name in found if re.fullmatch(r"reproduce/\w+/table\d+\.md", name)}
    assert set(named) == {name for name in found if name.endswith(".md")} - tables
    assert len(named) == len(set(named))
    assert "## `selhn data concepts`" in found["reference/commands.md"]
    assert r"such as '\*vse\*'" in found["reference/commands.md"], "no emphasis"
    assert "|  |" not in found["reference/commands.md"] + found["reference/settings.md"], (
        "every option says what it does"
    )
    for name, text in found.items():
        assert text, f"{name} is empty"
        for file in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text) if name.endswith(".md") else ():
            assert posixpath.normpath(posixpath.join(posixpath.dirname(name), file)) in found, (
                f"{name}: {file}"
            )


def test_the_site_has_all_versions_that_were_built(tmp_path):
    site = load("site")
    site.BUILT, site.SITE = tmp_path / "built", tmp_path / "site"
    for version in ("0.9.0", "0.10.0", "0.9.0"):
        site.BUILT.mkdir()
        (site.BUILT / "index.html").write_text(version)
        site.file_by_version(version)
    known = json.loads((site.SITE / "versions.json").read_text())
    assert [(one["version"], one["aliases"]) for one in known] == [("0.10.0", ["latest"]), ("0.9.0", [])]
    assert "url=0.10.0/index.html" in (site.SITE / "index.html").read_text()


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page):
    for file in re.findall(r"`(\w[\w/]*/\w+\.(?:py|json|csv))(?:::[\w.]+)?`", page.read_text()):
        assert any((DOCS.parent / room / file).exists() for room in ("", "src", "src/selhn")), (
            f"there is no {file}"
        )


def names_in(path):
    """What a Python file defines: functions, classes and their methods, and constants."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
            members = node.body if isinstance(node, ast.ClassDef) else []
            found |= {f"{node.name}.{one.name}" for one in members if isinstance(one, ast.FunctionDef)}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_the_map_of_the_paper_names_what_exists():
    named = re.findall(r"`([\w/.]+\.py)::([\w.]+)`", (DOCS / "paper_map.md").read_text())
    assert len(named) > 40
    for file, name in named:
        assert name in names_in(DOCS.parent / file), f"{file} has no {name}"


def test_the_map_of_the_paper_leaves_nothing_out():
    rows = re.findall(
        r"^\| (Equation|Table|Figure) (\d+) \|", (DOCS / "paper_map.md").read_text(), flags=re.MULTILINE
    )
    expected = {"Equation": 16, "Table": len(TABLES), "Figure": len(FIGURES)}
    assert rows == [(kind, str(number)) for kind, most in expected.items() for number in range(1, most + 1)]


def test_the_gradient_is_what_theory_says():
    parts = load("theory").tangent_parts()
    torch.testing.assert_close(parts["v"], parts["v_true"])
    torch.testing.assert_close(parts["t"], parts["angle"].deg2rad().sin())
    assert (parts["v"] - parts["v_paper"]).abs().median() > 0.3


def test_collapse_draws_hardest_negatives_in_and_averages_out():
    near_collapse = load("theory").near_collapse
    for spread in (0.05, 0.1, 0.2):
        assert (
            near_collapse(spread, 8)[0] < 0.2 < near_collapse(spread, 128)[0] < near_collapse(spread, 2048)[0]
        )
        assert near_collapse(spread, 128)[1] < 0.2


def test_training_contracts_and_expands_as_theory_says():
    theory = load("theory")
    ends = {name: theory.learn(make(), 128, steps=150)["spread"] for name, (make, _) in theory.LOSSES.items()}
    assert ends["T-HN"][-1] < 0.5 * ends["T-HN"][0]
    assert ends["SelHN"][-1] > ends["T-HN"][-1]
    assert ends["Triplet"][-1] > 1.3
    without = theory.learn(theory.TripletHN(0.2), 128, mean=0.0, steps=100)["spread"]
    assert without[-1] > 0.98 * without[0]
