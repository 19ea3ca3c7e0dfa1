"""The short form of the drill of kills, power cuts and full disks; the long form: `make faults`."""

import json

from faults.drill import run_drill


def test_whatever_happens_nothing_is_lost_and_the_end_is_the_same():
    found = json.loads(run_drill("kills", "--points", "1", "--random", "1", "--json"))
    assert {one["point"]["work"] for one in found} == {"train", "resume", "save", "index", "eval", "export"}
    assert {one["point"]["kind"] for one in found} == {"kill", "power", "full", "random"}
    wrong = [one for one in found if one["problem"]]
    assert not wrong, "\n".join(
        f"{one['point']}, before {one['operation']}: {one['problem']}" for one in wrong
    )
