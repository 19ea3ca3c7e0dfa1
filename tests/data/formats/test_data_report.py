import pytest

from selhn.base.errors import SelhnError
from selhn.data.formats.data_report import Report, each


def fail(error):
    raise error


def test_problems_are_written_down():
    report = Report()
    report.raise_problems()
    for error in (SelhnError("fix it"), SelhnError("this\nthat"), OSError(5, "disk error", "x.npy")):
        with report.collecting():
            fail(error)
    problems = ["fix it", "this", "that", "cannot read x.npy (disk error): check its rights and disk"]
    assert report.problems == problems
    with pytest.raises(SelhnError, match="(?s)fix it.*that"):
        report.raise_problems()


def test_a_bug_is_not_a_problem_of_the_data():
    with pytest.raises(ZeroDivisionError), Report().collecting():
        fail(ZeroDivisionError())


def test_each_says_all_problems():
    assert each(lambda: 1, lambda: "a") == [1, "a"]
    with pytest.raises(SelhnError) as caught:
        each(lambda: fail(SelhnError("a")), lambda: 1, lambda: fail(SelhnError("b")))
    assert str(caught.value) == "a\nb"
