"""TensorBoard, for real: it answers, shows the run, and ends."""

import json
import urllib.request

import pytest

from tests.tracking.services import wait_until
from tracking.tensorboard import TensorBoard


@pytest.fixture
def run(tmp_path):
    import tensorflow as tf

    folder = tmp_path / "run"
    with tf.Graph().as_default():
        writer = tf.compat.v1.summary.FileWriter(str(folder))
        value = tf.compat.v1.Summary.Value(tag="loss", simple_value=2.5)
        writer.add_summary(tf.compat.v1.Summary(value=[value]), 7)
        writer.close()
    return folder


def test_it_shows_the_run_and_ends(run, tmp_path, caplog):
    caplog.set_level("INFO")
    board = TensorBoard(str(run), str(tmp_path))
    try:

        def announced():
            board.announce()
            return "TensorBoard" in caplog.text

        wait_until(announced, "TensorBoard's start")
        board.announce()
        [message] = caplog.messages
        address = message.removeprefix("TensorBoard: ")
        assert "://localhost:" in address
        tags = f"{address.rstrip('/')}/data/plugin/scalars/tags"

        def shown():
            with urllib.request.urlopen(tags) as answer:
                return "loss" in json.load(answer)["."]

        wait_until(shown, "the curve")
    finally:
        board.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(tags)
    assert not (tmp_path / "tensorboard.txt").exists()


def test_a_failure_is_told(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("tracking.tensorboard._PROGRAM", "raise SystemExit('no port is left')")
    board = TensorBoard(str(tmp_path), str(tmp_path))

    def told():
        board.announce()
        return caplog.text

    wait_until(told, "a warning")
    assert caplog.messages == ["TensorBoard has ended: no port is left"]
    board.close()
