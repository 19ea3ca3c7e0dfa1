"""`track=` with the real trackers, without a network: settings, curves, tables and the verdict are read back."""

import json
import time

import pytest

from selhn.base.errors import SelhnError
from selhn.data import load_data
from selhn.diagnose import read_foreign
from selhn.losses import TripletHN
from selhn.models import create_model
from selhn.text import Vocabulary
from selhn.training import train

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries
SETTINGS = {"epochs": 2, "batch_size": 8, "device": "cpu", "quiet": True}


@pytest.fixture(scope="module")
def world():
    return load_data("world", images=12)


def trained(world, out, track, **settings):
    words = Vocabulary.build(world.train.captions)
    model = create_model("vse_fc", tokenizer=words, feature_dim=world.feature_dim, dim=8, word_dim=6)
    return train(model, world, TripletHN(), out=out, track=track, **{**SETTINGS, **settings})


def steps_of(out):
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


class Mine:
    """Somebody's own tracker."""

    def __init__(self):
        self.rows, self.alerts = [], []

    def log(self, row, step):
        self.rows.append((step, row))

    def alert(self, title, text):
        self.alerts.append((title, text))


def test_an_object_of_ones_own(world, tmp_path):
    mine = Mine()
    trained(world, tmp_path / "run", mine, epochs=1)
    logged = steps_of(tmp_path / "run")
    assert [step for step, _ in mine.rows] == [row["step"] for row in logged]
    assert mine.rows[0][1]["loss"] == logged[0]["loss"]
    assert mine.rows[-1][1]["dev.rsum"] == logged[-1]["dev"]["rsum"]
    for wrong in (object(), "wandd", ["mlflow", 3]):
        with pytest.raises(SelhnError):
            trained(world, tmp_path / "no", wrong)
    assert not (tmp_path / "no").exists()


def test_tensorboard(world, tmp_path, library):
    library("tensorboard")
    trained(world, tmp_path / "run", None)  # by itself, since it is installed
    (file,) = (tmp_path / "run").glob("*tfevents*")
    read = read_foreign(file, "loss")
    assert read.columns["loss"].tolist() == pytest.approx(
        [row["loss"] for row in steps_of(tmp_path / "run") if "loss" in row]
    )
    text = file.read_bytes()
    for part in (b"| train.epochs | 2 |", b"what helps", b"| dev |"):
        assert part in text


def records(path):
    """The records of a file of Weights & Biases: the format of LevelDB's logs, after seven bytes of its own."""
    data, at, block, whole = path.read_bytes()[7:], 0, 32768, b""
    while at + 7 <= len(data):
        if block - (at + 7) % block < 7:  # the rest of a block is empty
            at += block - (at + 7) % block
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if at + 7 + size > len(data):
            return
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_wandb_offline(world, tmp_path, library, monkeypatch):
    library("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    trained(world, tmp_path / "run", "wandb")
    (file,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    for _ in range(100):  # another process writes it
        found = [Record.FromString(data) for data in records(file)]
        if found and found[-1].HasField("exit"):
            break
        time.sleep(0.1)
    curve, config = [], set()
    for record in found:
        items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        curve += [json.loads(items["loss"])] if "loss" in items else []
        config |= {one.key for one in (*record.run.config.update, *record.config.update)}
    assert curve == pytest.approx([row["loss"] for row in steps_of(tmp_path / "run") if "loss" in row])
    assert "train.epochs" in config
    files = (tmp_path / "run").glob("wandb/offline-run-*/files/media/table/*.json")
    assert {json.loads(one.read_text())["columns"][0] for one in files} == {"verdict", "split"}


def test_trackio(world, tmp_path, library, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    library("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    trained(world, tmp_path / "run", "trackio")
    (name,) = SQLiteStorage.get_runs("selhn")
    rows = SQLiteStorage.get_logs("selhn", name)
    curve = [row["loss"] for row in rows if "loss" in row]
    assert curve == pytest.approx([row["loss"] for row in steps_of(tmp_path / "run") if "loss" in row])
    assert {"verdict", "results"} <= {key for row in rows for key in row}
    assert SQLiteStorage.get_run_config("selhn", name)["train.epochs"] == 2


def test_mlflow_in_sqlite(world, tmp_path, library, monkeypatch):
    mlflow = library("mlflow", "sqlalchemy", "alembic")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    trained(world, tmp_path / "run", ["mlflow"])
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("selhn").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["train.epochs"] == "2"
    assert "verdict.why" in run.data.tags
    curve = [metric.value for metric in client.get_metric_history(run.info.run_id, "loss")]
    assert curve == pytest.approx([row["loss"] for row in steps_of(tmp_path / "run") if "loss" in row])
    assert {one.path for one in client.list_artifacts(run.info.run_id)} == {"results.json", "verdict.json"}


def test_runs_that_were_started_before_get_all_and_stay_open(world, tmp_path, library, monkeypatch):
    mlflow, wandb, _ = library("mlflow", "sqlalchemy", "alembic"), library("wandb"), library("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    writer = SummaryWriter(str(tmp_path / "board"))
    with mlflow.start_run() as active, wandb.init(mode="offline", dir=str(tmp_path)) as ours:
        trained(world, tmp_path / "run", [active, ours, writer], epochs=1)
        run = mlflow.MlflowClient().get_run(active.info.run_id)
        assert run.info.status == "RUNNING"
        assert run.data.params["train.epochs"] == "1"
        assert run.data.metrics["loss"] == pytest.approx(
            [row["loss"] for row in steps_of(tmp_path / "run") if "loss" in row][-1]
        )
        assert ours.config["train.epochs"] == 1
        ours.log({"still": "open"})
    writer.close()
    (file,) = (tmp_path / "board").glob("*tfevents*")
    assert b"| train.epochs | 1 |" in file.read_bytes()
