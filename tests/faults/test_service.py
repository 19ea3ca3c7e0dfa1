"""The short form of the attack on the service; the long form: `python -m faults service`."""

from faults.drill import run_drill


def test_good_clients_are_answered_while_others_attack():
    # No heavy picture: the small model takes it whole, 120 MB, and in five seconds that looks like growth.
    few = {
        "idle": 200,
        "slow": 8,
        "bombs": 4,
        "heavy": 0,
        "good": 6,
        "descriptors": 256,
        "seconds": 5,
        "pause": 0.1,
    }
    words = [word for name, number in few.items() for word in (f"--{name}", str(number))]
    said = run_drill("service", "--tiny", *words, timeout=120)
    assert "0 problems" in said
    for kind in ("search", "search by picture", "picture", "health", "page"):
        assert f"| {kind} |" in said
