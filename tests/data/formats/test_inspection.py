import pytest

from selhn.data.formats.inspection import Inspection, Report


def fail(error):
    raise error


def test_strict_stops_at_the_first_problem():
    inspection = Inspection()
    assert inspection.attempt(int, "3") == 3
    with pytest.raises(ValueError, match="mend it"):
        inspection.attempt(fail, ValueError("mend it"))
    with pytest.raises(ValueError, match="mend that"):
        inspection.refuse("mend that")


def test_otherwise_all_are_written_down():
    inspection = Inspection(strict=False)
    assert inspection.attempt(fail, ValueError("mend it")) is None
    assert inspection.attempt(fail, OSError("disk")) is None
    inspection.refuse("mend that")
    assert inspection.problems == ["mend it", "OSError while reading: disk", "mend that"]


def test_a_report_reads_like_plain_words():
    report = Report(("train: 3 images",), ("no ids",), ("captions are missing: write them",))
    assert not report.ok
    assert str(report).splitlines() == [
        "train: 3 images",
        "warning: no ids",
        "problem: captions are missing: write them",
        "Problems to mend: 1.",
    ]
    assert str(Report(("train: 3 images",))) == "train: 3 images\nThis data can be used."
