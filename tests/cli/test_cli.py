"""The command line as a person meets it."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from programs import Program
from programs import run as run_program
from typer.testing import CliRunner

from selhn.base.errors import MissingExtra, SelhnError
from selhn.base.version import __version__
from selhn.cli import app, main

RUNNER = CliRunner()
pytestmark = pytest.mark.usefixtures("small_dev_and_test")
TINY = ["data.images=100", "epochs=1", "batch_size=64", "model.dim=16", "device=cpu"]


def say(*words):
    result = RUNNER.invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.parametrize(
    ("own", "then"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_that_wait_let_other_programs_run(own, then):
    """Unless the user has said how they should wait."""
    code = (
        "import os, sys; sys.argv = ['selhn', '--version']\nfrom selhn.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    )
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    said = subprocess.check_output([sys.executable, "-c", code], text=True, env={**usual, **own})
    assert said.splitlines()[-1] == f"{then} False"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    result = say("train", "rvse_selhn_world", *TINY, "batch_size=32", "--out", folder)
    assert "test  i2t" in result.output
    return folder


def test_help_answers_at_once_and_without_torch():
    code = (
        "import sys; sys.argv = ['selhn', '--help']\nfrom selhn.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")
    commands = "demo models losses data train eval reproduce index search serve show export diagnose report"
    for command in commands.split():
        assert command in done.stdout


def test_the_tables():
    assert say("--version").output == f"selhn {__version__}\n"
    assert "rvsepp" in say("models").output
    assert "vse_fc" in say("models", "vse_*").output
    assert "saf" not in say("models", "vse_*").output
    assert "selhn" in say("losses", "*hn").output
    assert "Paper: 498.6" in say("train", "--list").output
    assert "Paper: 498.6" in say("train").output


def test_the_overview_cuts_no_sentence():
    for group in ([], ["data"], ["show"], ["export"]):
        said = say(*group, "--help").output.split("Commands:")[1]
        assert "..." not in said, said


def test_train_eval_search(run, tmp_path):
    assert "rsum" in say("eval", run).output
    assert "rsum" in say("eval", run, "--split", "dev", "--folds", "2").output
    lines = say("search", run, "a red ball", "-k", "3").output.splitlines()
    assert len(lines) == 3
    assert "scene-" in lines[0]
    assert "epoch  2/2" in say("train", "--resume", run, "epochs=2").output


def test_without_a_recipe_the_strong_one_is_taken(monkeypatch):
    begun = []

    def begin(config, out, track):
        begun.append((config, str(out)))
        raise SelhnError("far enough")

    monkeypatch.setattr("selhn.training.run_config", begin)
    for words in (["data=my_features", "epochs=3"], ["rvse_strong_f8k", "data=my_features", "epochs=3"]):
        with pytest.raises(SelhnError, match="far enough"):
            say("train", *words)
    (config, out), (named, named_out) = begun
    assert config == named
    assert (config.train.ema, config.train.epochs, config.data) == (0.999, 3, "my_features")
    assert (out, named_out) == ("runs/strong", "runs/rvse_strong_f8k")
    assert "data=DIR` takes rvse_strong" in say("train").output


def test_an_index_is_made_gone_on_with_and_asked(run, tmp_path):
    place = ["--index", tmp_path / "scenes.index"]
    made = say("index", "--model", run, *place, "--precision", "float16").output
    assert "20 images, 100 texts, 16 numbers each in float16, by rvse" in made
    assert say("index", "--model", run, *place).output == made, "all of it is there"
    more = say("index", *place, "--model", run, "--split", "dev").output
    assert "40 images" in more
    lines = say("search", "a red ball", *place, "--k", "3").output.splitlines()
    assert len(lines) == 3
    assert say("search", tmp_path / "scenes.index", "a red ball", "-k", "3").output.splitlines() == lines
    only_test = say(
        "search", "a red ball", *place, "-k", "300", "--where", "split = test"
    ).output.splitlines()
    assert len(only_test) == 20
    name = lines[0].split()[2]
    assert "39 images" in say("index", *place, "--delete", name, "--compact", "--check").output
    assert name not in say("search", "a red ball", *place).output
    assert len(say("search", "--like", lines[1].split()[2], *place).output.splitlines()) == 5


def test_a_page_about_a_run(run, tmp_path):
    page = tmp_path / "page.html"
    said = say("report", run, "--out", page, "--examples", "1", "--device", "cpu").output
    assert said.startswith(f"{page}: ")
    assert "<h2>Examples</h2>" in page.read_text()
    with pytest.raises(ValueError, match="there is no run"):
        say("report", tmp_path / "nowhere")


def test_an_ensemble_of_scores_on_disk_and_the_attention_of_a_pair(run, tmp_path):
    words = [*TINY, "model.word_dim=8", "--out", tmp_path / "scan"]
    say("train", "scan_t2i_avg_selhn_world", *words)
    rows = say("eval", run, tmp_path / "scan", "--scores", tmp_path / "scores").output.splitlines()
    assert len(rows) == 6
    assert rows[-2].startswith("ensemble ")
    assert all(re.search(r"^ +95 %: i2t .* rsum \d+\.\d-\d+\.\d$", row) for row in rows[1::2])
    rows = rows[::2]
    assert len({row.index("i2t") for row in rows}) == 1
    assert len(list((tmp_path / "scores").rglob("scores.npy"))) == 2
    again = say("eval", run, tmp_path / "scan", "--scores", tmp_path / "scores").output.splitlines()
    assert again[::2] == rows
    pytest.importorskip("matplotlib")
    picture = tmp_path / "attention.png"
    shown = say(
        "show", "attention", tmp_path / "scan", "--image", "3", "--text", "a red ball", "--out", picture
    )
    assert len(shown.output.splitlines()) == 1 + 5 + 1
    assert picture.stat().st_size > 50_000, "with the scene in it"
    with pytest.raises(ValueError, match="models that have: scan_t2i_avg"):
        say("show", "attention", run)


def test_diagnose(run, tmp_path):
    assert "loss_per_anchor" in say("diagnose", run).output
    stuck = tmp_path / "stuck.csv"
    stuck.write_text("epoch,Train Loss\n" + "".join(f"{epoch},25.6{epoch % 7}\n" for epoch in range(20)))
    said = say("diagnose", stuck, "--batch", "64")
    assert said.exit_code == 0
    assert "stalled since row 1" in said.output
    assert "128 x margin" in said.output
    verdict = json.loads(say("diagnose", stuck, "--json", "--reduction", "sum").output)
    assert verdict["kind"] == "stalled"
    with pytest.raises(ValueError, match="no column 'Loss'"):
        say("diagnose", stuck, "--column", "Loss")
    pytest.importorskip("matplotlib")
    assert "Picture: " in say("diagnose", stuck, "--figure", tmp_path / "stuck.png").output
    assert (tmp_path / "stuck.png").stat().st_size > 10_000


def test_diagnose_what_is_pasted_and_without_a_figure(tmp_path, monkeypatch):
    lines = "".join(
        f"Epoch: [{n // 70}][{n % 70}/70]\tLe {51.2 + n % 3 / 50:.4f} (51.2)\n" for n in range(0, 700, 10)
    )
    pasted = RUNNER.invoke(app, ["diagnose", "-", "--batch", "128"], input=lines)
    assert pasted.exit_code == 0
    assert "stalled since step" in pasted.output
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / "log.txt").write_text(lines)
    drawn = RUNNER.invoke(
        app, ["diagnose", str(tmp_path / "log.txt"), "--figure", str(tmp_path / "log.png"), "--json"]
    )
    assert json.loads(drawn.stdout)["kind"] == "stalled", (
        "the verdict is there whether it can be drawn or not"
    )
    assert isinstance(drawn.exception, MissingExtra)


def test_seeds(tmp_path):
    output = say("train", "vse_fc_hn_world", *TINY, "seeds=0,1", "--out", tmp_path).output
    assert "seed    1" in output
    assert "±" in output


def test_reproduce(tmp_path):
    listed = say("reproduce", "--list").output
    assert say("reproduce").output == listed
    assert "fig9" in listed
    pytest.importorskip("matplotlib")
    small = [
        "data.images=100",
        "data.width=32",
        "epochs=1",
        "batch_size=100",
        "model.dim=16",
        "model.word_dim=8",
    ]
    words = ["--tiny", "--seeds", "0,1", "--jobs", "1", "--out", tmp_path]
    shown = say("reproduce", "fig7", *small, "model.bert=nowhere", *words).output
    assert "[4/4" in shown
    assert "nowhere is not the folder of a BERT" in shown
    assert (tmp_path / "fig7.png").stat().st_size > 10_000


def test_help_on_settings_and_folders():
    assert "epochs=5" in say("train", "--help").output
    assert "images=100" in say("data", "show", "--help").output
    for words in (["data", "check"], ["data", "show"]):
        assert "world" in say(*words, "--help").output.split("Arguments:")[1].split("\n")[1]


def test_data(tmp_path):
    imported = say("data", "import", "world", tmp_path / "own", "images=100", "--half")
    assert "100 images" in imported.output
    checked = say("data", "check", tmp_path / "own")
    assert checked.exit_code == 0
    assert "train" in checked.output
    shown = say("data", "show", "world", "images=100", "--number", "2", "--pictures", tmp_path / "pictures")
    assert "test-scene-000001" in shown.output
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 2
    assert say("data", "check", tmp_path / "nothing").exit_code == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "rvse_selhn_worl"], "unknown recipe 'rvse_selhn_worl': did you mean 'rvse_selhn_world'?"),
        (
            ["train", "my_data"],
            "'my_data': `selhn train --list` shows all; to train on a folder of data, write data=my_data",
        ),
        (
            ["train", "rvse_selhn_world", "margin=0.3"],
            "unknown setting 'margin': did you mean 'loss.margin'?",
        ),
        (["train", "rvse_selhn_world", "dim=3"], "unknown setting 'dim': did you mean 'model.dim'?"),
        (["diagnose", "nowhere.csv"], "there is no file nowhere.csv: name the folder of a run, a CSV"),
        (["train", "rvse_selhn_world", "epoch=3"], "unknown setting 'epoch': did you mean 'epochs'?"),
        (["train", "rvse_selhn_world", "--seeds", "a"], "--seeds takes whole numbers such as 0,1,2, got 'a'"),
        (["train", "rvse_selhn_world", "seeds=a"], "--seeds takes whole numbers such as 0,1,2, got 'a'"),
        (["train", "seeds=²"], "--seeds takes whole numbers such as 0,1,2, got '²'"),
        (["eval", "ready"], "ready does not say what data it was trained on"),
        (["eval", "nowhere"], "nowhere"),
        (["search", "no/where", "a dog"], "no/where does not exist"),
        (
            ["search", "photos/trip", "a dog"],
            "photos/trip is neither an index nor a run: to search the pictures in it, `selhn index photos/trip`",
        ),
        (
            ["serve", "photos"],
            "photos is a folder, but not an index: to search the pictures in it, `selhn photos photos`",
        ),
        (["search", "a dog"], "there is no index selhn.index: make one with `selhn index ~/Pictures`"),
        (["search"], "there is no index selhn.index: make one with `selhn index ~/Pictures`"),
        (["index", "world"], "there is no index selhn.index yet: name a run"),
        (["index", "nowhere"], "there is no folder"),
        (["index", "--check"], "selhn.index does not exist"),
        (["train", "rvse_hn_f8k"], "the data set 'f8k' was not found"),
        (
            ["train", "--resume", "nowhere"],
            "there is no run nowhere: name the folder that `selhn train` wrote",
        ),
        (
            ["train", "data=world", "--epochs", "3"],
            "there is no option --epochs: settings are written epochs=VALUE",
        ),
        (["train", "data=world", "--output", "runs/a"], "there is no option --output: did you mean '--out'?"),
        (
            ["train", "rvse_selhn", "data=my_data"],
            "'rvse_selhn': a recipe ends in a data set, as in rvse_selhn_world; for your own data add data=FOLDER",
        ),
        (["train", "rvse_selhn_my_data"], "for your own data add data=FOLDER"),
        (
            ["train", "data=world", "data.images=20", "batch_size=500"],
            "train has 100 captions: set batch_size=100",
        ),
        (["models", "rvze"], "no model matches 'rvze'"),
        (["data", "show", "world", "images=[1"], "cannot be read"),
        (["reproduce", "tabel1"], "unknown table or figure 'tabel1': did you mean 'table1'?\n"),
        (["reproduce", "table1", "--data", "f30k"], "the data set 'f30k' was not found"),
        (["reproduce", "table1", "--data", "nowhere"], "nowhere"),
        (["reproduce", "table1", "--seeds", "x"], "--seeds takes whole numbers such as 0,1,2, got 'x'"),
        (["demo", "--epochs", "0"], "epochs must be at least 1"),
        (
            ["train", "rvse_selhn_world", "data.images=50", "model.dim=0"],
            "dim of rvse is 0: choose at least 1",
        ),
        (["diagnose", "log.csv", "--figure", "log.xyz"], "figures cannot be written as .xyz"),
    ],
)
def test_mistakes_are_one_sentence(words, sentence, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SELHN_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["selhn", *words])
    (tmp_path / "photos" / "trip").mkdir(parents=True)
    (tmp_path / "log.csv").write_text("epoch,loss\n" + "".join(f"{epoch},0.2\n" for epoch in range(20)))
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("selhn: ")
    assert sentence in error
    assert "Traceback" not in error


def test_a_line_break_in_the_name_of_a_file_is_no_message_of_its_own(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        sys, "argv", ["selhn", "search", "--index", str(tmp_path / "a\nselhn: \x1b[2Jdone"), "dog"]
    )
    with pytest.raises(SystemExit):
        main()
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("selhn: ") for line in lines] == [True] + [False] * (len(lines) - 1)
    assert not any("\x1b" in line for line in lines)


def test_a_file_that_cannot_be_read_is_named(monkeypatch, capsys, tmp_path):
    def missing(pattern):
        (tmp_path / "models.txt").read_text()

    monkeypatch.setattr("selhn.models.list_models", missing)
    monkeypatch.setattr(sys, "argv", ["selhn", "models"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"selhn: {tmp_path / 'models.txt'}: No such file or directory\n"


@pytest.mark.parametrize(
    ("bug", "kind"),
    [
        ("1 // 0", "ZeroDivisionError"),
        (
            "torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.zeros(3, dtype=torch.int64))",
            "ValueError",
        ),
    ],
)
def test_a_bug_shows_its_traceback(bug, kind):
    code = (
        "import sys, torch, selhn.cli, selhn.models\nsys.argv = ['selhn', 'models']\n"
        f"selhn.models.list_models = lambda pattern: {bug}\nselhn.cli.main()"
    )
    done = run_program("-c", code)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(kind)


def test_ctrl_c_says_how_to_go_on(tmp_path):
    command = ["-m", "selhn", "train", "vse_fc_hn_world", *TINY, "epochs=500", "--out", "run"]
    with Program(*command, cwd=tmp_path) as child:
        assert any("epoch" in line for line in child.stdout), child.said()
        child.send_signal(signal.SIGINT)
        said = "".join(child.communicate(timeout=60))
    assert child.returncode == 130
    assert "selhn train --resume run" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("words", [["index", "Pictures"], ["eval", "run"]])
def test_what_a_stopped_command_has_to_say_is_heard(words, monkeypatch, capsys):
    def stopped(*arguments, **settings):
        raise KeyboardInterrupt("stopped: what was done is kept")

    monkeypatch.setattr("selhn.cli.search.fill_index", stopped)
    monkeypatch.setattr("selhn.training.score_runs", stopped)
    monkeypatch.setattr(sys, "argv", ["selhn", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    assert "selhn: stopped: what was done is kept" in capsys.readouterr().err


def test_a_folder_of_pictures_is_imported(tmp_path, monkeypatch):
    from picture_cases import TinyBackbone, encoded, photo

    from selhn.pictures import Extractor

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("selhn.pictures.load_extractor", lambda name, device: Extractor(TinyBackbone()))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number in range(4):
        (tmp_path / "photos" / f"{number}.png").write_bytes(encoded(photo(number), "PNG"))
    (tmp_path / "photos" / "bad.jpg").write_bytes(b"")
    (tmp_path / "captions.csv").write_text(
        "image,caption\n" + "".join(f"{n}.png,picture {n}\n" for n in range(4))
    )
    said = say("data", "import", "photos", "--captions", "captions.csv", "--half").output
    assert "4 pictures used (4 computed now), 1 files left out" in said
    assert "left out: bad.jpg: " in said
    assert "train: 2 images, 2 captions" in said
    assert "This data can be used." in said
    again = say("data", "import", "photos", "second", "batch_size=2").output
    assert "4 pictures used (0 computed now)" in again
    assert "0 captions" in again
    with pytest.raises(
        ValueError, match="an import of pictures has no setting 'batchsize': did you mean 'batch_size'"
    ):
        say("data", "import", "photos", "third", "batchsize=2")
    with pytest.raises(SelhnError, match="there is no device 'frog' here"):
        say("data", "import", "photos", "third", "--device", "frog")
