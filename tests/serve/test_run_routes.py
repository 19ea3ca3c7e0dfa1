import json

import pytest

from selhn.serve.service import Service
from selhn.serve.watched_runs import WatchedRuns


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "runs" / "one" / "log.jsonl"
    path.parent.mkdir(parents=True)
    lines = [{"step": step, "epoch": 0, "loss_per_anchor": 0.2, "delta_s": 0.001} for step in range(1, 900)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_runs_over_the_line(log, client_of):
    client = client_of(Service(None, WatchedRuns(log.parents[1])))
    (run,) = client.get("/api/v1/runs").json()
    assert run["name"] == "one"
    assert run["finished"] is False
    first = client.get("/api/v1/runs/log", params={"run": "one"}).json()
    assert first["steps"][-1] == 899
    with log.open("a") as file:
        file.write('{"step": 900, "loss": 0.1}\n')
    second = client.get("/api/v1/runs/log", params={"run": "one", "after": first["after"]}).json()
    assert second["steps"] == [900]
    assert client.get("/api/v1/runs/verdict", params={"run": "one"}).json()["kind"] == "stalled"
    about = client.get("/api/v1/about").json()
    assert about["can"]["runs"]
    assert not about["can"]["search"]
    assert client.get("/api/v1/models").json() == []


@pytest.mark.parametrize("name", ["../..", "none", "/etc", "one/../../.."])
def test_runs_that_are_not_there(log, client_of, name):
    client = client_of(Service(None, WatchedRuns(log.parents[1])))
    for path in ("log", "verdict"):
        answer = client.get(f"/api/v1/runs/{path}", params={"run": name})
        assert answer.status_code == 404
        assert "there is no run" in answer.json()["error"]
    assert client.get("/api/v1/runs/log", params={"run": "one", "after": -1}).status_code == 422
    assert client.get("/api/v1/runs/log", params={"run": "one", "after": 10**30}).status_code == 422


def test_a_service_without_runs_or_without_an_index(collection, log, client_of):
    answer = client_of(Service(collection)).get("/api/v1/runs")
    assert answer.status_code == 404
    assert "--runs" in answer.json()["error"]
    alone = client_of(Service(None, WatchedRuns(log.parents[1])))
    for path in ("search?text=dog", "items", "item?id=x", "picture?id=x"):
        answer = alone.get(f"/api/v1/{path}")
        assert answer.status_code == 404
        assert "no index is served" in answer.json()["error"]
