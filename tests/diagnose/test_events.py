import struct
from contextlib import suppress

import pytest
from event_files import HEADER, event, field, record, scalar_event
from hypothesis import given
from hypothesis import strategies as st

from selhn.base.errors import Damaged
from selhn.diagnose import diagnose
from selhn.diagnose.events import LONGEST_RECORD, read_events


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("board") / "events.out.tfevents.1"


steps = st.integers(-5, 2**40)
numbers = st.floats(width=32, allow_nan=False)


@given(rows=st.lists(st.tuples(steps, numbers, numbers), max_size=20))
def test_what_was_written_is_read(file, rows):
    file.write_bytes(
        HEADER + b"".join(scalar_event(step, loss=one, val__loss=two) for step, one, two in rows)
    )
    expected = [(step, tag, value) for step, *both in rows for tag, value in zip(("loss", "val/loss"), both)]
    assert read_events(file) == expected


def test_the_newer_form_and_all_else(file):
    as_float = field(8, field(1, 1) + field(5, struct.pack("<f", 0.25)))
    as_bytes = field(8, field(1, 2) + field(4, struct.pack("<d", 0.5)))
    picture = field(4, b"not a number")
    words = field(8, field(1, 7) + field(8, b"text"))
    file.write_bytes(event(3, {"a": as_float, "b": as_bytes, "c": picture, "d": words}))
    assert read_events(file) == [(3, "a", 0.25), (3, "b", 0.5)]


@given(cut=st.integers(0, 200))
def test_a_file_that_was_cut_off_has_what_is_whole(file, cut):
    whole = [scalar_event(step, loss=step) for step in range(4)]
    bytes_ = HEADER + b"".join(whole)
    file.write_bytes(bytes_[:cut])
    read = read_events(file)
    left, expected = cut - len(HEADER), []
    for step, one in enumerate(whole):
        left -= len(one)
        if left >= 0:
            expected.append((step, "loss", float(step)))
    assert read == expected


@given(junk=st.binary(min_size=1, max_size=400))
def test_junk_is_a_sentence_or_nothing(file, junk):
    for content in (junk, record(junk)):
        file.write_bytes(content)
        with suppress(Damaged):
            read_events(file)


def test_a_length_that_cannot_be(file):
    file.write_bytes(struct.pack("<QI", LONGEST_RECORD + 1, 0))
    with pytest.raises(Damaged, match="byte 0"):
        read_events(file)
    file.write_bytes(HEADER + record(b"\x2a\xff\x01"))
    with pytest.raises(Damaged, match=f"the record at byte {len(HEADER)}"):
        read_events(file)


def test_the_loss_that_vse_and_scan_call_le(tmp_path):
    board = tmp_path / "events.out.tfevents.1"
    board.write_bytes(
        HEADER + b"".join(scalar_event(step, Le=51.2, Eit=float(step)) for step in range(1, 600))
    )
    verdict, log, *_ = diagnose(tmp_path)
    assert (log.loss_name, verdict.kind) == ("Le", "stalled")
    table = tmp_path / "log.csv"
    table.write_text("step,lr,Le,Eit\n" + "".join(f"{step},0.1,51.2,{step}\n" for step in range(1, 600)))
    assert diagnose(table).log.loss_name == "Le"
