"""What is kept of a run's output."""

import logging

import pytest

from tracking import output as module
from tracking.output import Output


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(module, "HEAD_BYTES", 40)
    monkeypatch.setattr(module, "TAIL_BYTES", 60)
    return Output()


def test_output_is_shown_and_kept(capfd):
    output = Output()
    output.begin_with(b"before\n")
    output.take("café\n".encode())
    assert output.text() == "before\ncafé\n"
    assert output.size == len("café\n".encode())
    assert capfd.readouterr().err == "café\n"


def test_log_lines_are_output_but_no_sign_of_life(capfd):
    output = Output()
    output.handle(logging.LogRecord("x", logging.INFO, "", 0, "restart %d", (2,), None))
    assert output.text().endswith(" restart 2\n")
    assert output.size == 0
    assert capfd.readouterr().err == output.text()


def test_the_middle_of_long_output_is_left_out(small, capfd):
    lines = [f"line {number:4}\n" for number in range(50)]
    for line in lines:
        small.take(line.encode())
    text = small.text()
    assert text.startswith("".join(lines[:4]))
    assert text.endswith("".join(lines[-6:]))
    left_out = int(text.partition("[… ")[2].partition(" bytes")[0])
    assert len(text) - len(f"\n[… {left_out} bytes left out …]\n") + left_out == 50 * 10
    assert capfd.readouterr().err == "".join(lines)


def test_bytes_that_are_no_text_are_kept_as_such(small, capfd):
    small.take(b"\xff\xfe ok\n")
    assert small.text() == "\ufffd\ufffd ok\n"
