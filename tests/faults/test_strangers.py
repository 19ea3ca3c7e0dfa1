"""The short form of the drill of folders from elsewhere; the long form: `make faults`."""

import json
import sys
from collections import defaultdict

import pytest
import typer
from faults.drill import run_drill

from selhn.cli import app

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only its kernel tells what is opened")


@on_linux
def test_nothing_outside_is_changed_read_or_named():
    found = json.loads(run_drill("strangers", "--quick", "--cases", "50", "--json"))
    assert len({one["door"] for one in found}) > 20
    wrong = [one for one in found if one["problems"]]
    assert not wrong, "\n".join(
        f"{one['door']}, {one['kind']} at {one['entry']}: {one['problems']}" for one in wrong
    )


@on_linux
def test_the_drill_sees_what_it_looks_for():
    """Doors that do wrong in every way there is: each is found."""
    found, kinds = (
        json.loads(run_drill("strangers", "--self-test", "--json", "--seconds", "3")),
        defaultdict(set),
    )
    for one in found:
        kinds[one["door"]] |= {problem[0] for problem in one["problems"]}
    assert kinds == {
        "reads": {"opened", "blocks"},
        "reads without Python": {"opened", "traceback"},
        "lists": {"opened"},
        "writes": {"touched", "changed", "blocks"},
        "removes": {"opened", "touched", "changed", "blocks", "named", "traceback"},
        "copies": {"opened", "touched", "changed", "named"},
        "tells": {"named", "traceback"},
        "fails": {"traceback"},
        "waits": {"hangs"},
        "is careful": set(),
    }


def commands(group, words=()):
    if not hasattr(group, "commands"):
        return {" ".join(words)}
    return set().union(*(commands(one, (*words, name)) for name, one in group.commands.items()))


def test_every_command_has_a_door():
    from faults.doors import DOORS, ELSEWHERE

    known = commands(typer.main.get_command(app))
    opened = {door.command for door in DOORS} - {""}
    assert opened | ELSEWHERE.keys() == known, "add a door, or say in ELSEWHERE why none is needed"
    assert not opened & ELSEWHERE.keys()


def test_every_route_is_asked(tmp_path):
    pytest.importorskip("fastapi", reason="needs selhn[serve]")
    from faults.routes import all_routes, asked

    from selhn.serve.app import create_app
    from selhn.serve.service import Service
    from selhn.serve.watched_runs import WatchedRuns

    app = create_app(Service(runs=WatchedRuns(tmp_path)))
    named = {f"{method} {path}" for method, path in all_routes(app)}
    described = {(method.upper(), path) for path, own in app.openapi()["paths"].items() for method in own}
    assert described <= set(all_routes(app))
    assert all(list(asked(name, ["an id"])) for name in named)
