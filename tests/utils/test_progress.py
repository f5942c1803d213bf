"""A bar with an estimate on a terminal, plain lines in a log; stdout stays free."""

import fcntl
import io
import logging
import os
import pty
import re
import select
import struct
import sys
import termios
import time

import pytest

from utils.progress import Progress
from utils.run_log import set_up_logging

VALUES = {
    "step": 5,
    "loss": 3.25,
    "learning_rate": 0.002,
    "grad_norm": 1.5,
    "tokens_per_second": 12345.6,
}
LINE = "step 5/20  loss 3.2500  lr 0.002  grad norm 1.500  12,346 tokens/s"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Logging as main.py sets it up, in a folder of its own; gives back the log file."""
    monkeypatch.chdir(tmp_path)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    set_up_logging("my_model", debug=False)
    yield tmp_path / "logs" / "my_model.log"
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def show(start=0):
    progress = Progress(start, 20)
    for step in range(start + 1, 6):
        time.sleep(0.05)
        progress.update(step, VALUES)
    progress.line(VALUES)
    logging.getLogger("test").warning("a warning")
    time.sleep(0.15)
    progress.update(6, VALUES | {"loss": 3.125})
    progress.close()


def test_a_terminal_shows_a_bar_with_an_estimate(log, monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    show()
    shown = terminal.getvalue()
    # percentage, steps of all, time so far < time to go, speed, loss
    assert re.search(r" 30%\|.*\| 6/20 \[\d\d:\d\d<\d\d:\d\d, .*step/s, loss 3\.125\]", shown)
    assert LINE not in shown  # the bar says it
    assert "a warning\n" in shown
    assert LINE in log.read_text()
    assert "a warning" in log.read_text()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("lines", "columns", "width"), [(0, 0, 80), (24, 0, 80), (0, 60, 80), (24, 60, 60)]
)
def test_the_bar_fills_a_terminal_and_80_columns_if_it_tells_no_size(
    log, monkeypatch, lines, columns, width
):
    monkeypatch.setenv("COLUMNS", "0")
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
    with open(follower, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        show()
        terminal.flush()
        shown = ""
        while select.select([leader], [], [], 1.0)[0]:  # one read may give a part of it
            shown += os.read(leader, 100_000).decode()
    os.close(leader)
    bars = [part.strip("\x1b[A\n") for part in re.split("[\r\n]+", shown) if "%|" in part]
    assert bars
    assert re.search(r"\| 6/20 \[.*loss 3\.125\]", shown)
    assert max(map(len, bars)) in (width - 1, width)


def test_a_resumed_run_begins_where_it_stands(log, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    show(start=4)
    assert re.search(r" 20%\|.*\| 4/20 ", terminal.getvalue())
    assert " 0/20 " not in terminal.getvalue()


def test_a_log_shows_plain_lines(log, monkeypatch, capsys):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    show()
    lines = file.getvalue().splitlines()
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines] == [LINE, "a warning"]
    assert "\r" not in file.getvalue()
    assert "\x1b" not in file.getvalue()
    assert log.read_text() == file.getvalue()
    assert capsys.readouterr().out == ""


def test_the_epoch_is_shown_if_it_is_known(log, monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    Progress(0, 20).line(VALUES | {"epoch": 1.257})
    assert file.getvalue().endswith(f"{LINE}  epoch 1.26\n")


@pytest.mark.parametrize(
    ("scale", "shown"), [(1234.56, "  noise scale 1,234.6 sequences"), (None, "")]
)
def test_a_line_tells_the_noise_scale_once_it_is_known(log, scale, shown):
    Progress(0, 20).line(VALUES | {"noise_scale": scale})
    assert LINE.replace("  12,346", f"{shown}  12,346") in log.read_text()
