"""The short form of the fuzzer, and what it found before; the long form: `make faults`."""

import json

from faults.drill import run_drill


def check(found):
    wrong = [one for one in found if one["fault"]]
    assert not wrong, "\n".join(f"{one['signature']}\n    {one['done']}" for one in wrong)


def test_some_damaged_and_forged_files_over_every_reader():
    found = json.loads(run_drill("fuzz", "--cases", "200", "--seed", "0", "--json", "--workers", "1"))
    assert len(found) >= 200
    assert {one["what"] for one in found} >= {"refused", "equal", "different"}
    check(found)


def test_what_was_found_before_stays_fixed():
    found = json.loads(run_drill("fuzz", "--corpus", "--json", "--workers", "1"))
    assert len(found) > 10
    check(found)


def test_the_fuzzer_sees_what_it_looks_for():
    """Readers that fail in every way there is: each is a finding."""
    found = json.loads(run_drill("fuzz", "--self-test", "--cases", "8", "--json", "--workers", "1"))
    faults = {one["signature"].split(":")[0]: one["fault"] for one in found}
    assert faults == {
        "raises": "raw error",
        "takes memory": "memory",
        "takes for ever": "slow",
        "dies": "died",
        "changes silently": "silent",
        "gives NaN": "not finite",
        "refuses": "",
        "is the same": "",
    }
