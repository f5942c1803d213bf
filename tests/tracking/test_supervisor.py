"""When a training process is ended, started anew, and given up."""

import signal

import pytest

from tracking.supervisor import Limits, Signs, StopRequest, Supervisor

NAN = "utils.hooks.NonFiniteLossError: loss must be finite"


class Run:
    """A run whose processes do what a script says.

    Args:
        script: of each process: exit code, or None for one that stalls; the step at its end; and
            the traceback that it leaves.
    """

    def __init__(self, *script, **limits):
        self.script = list(script)
        self.started, self.signals, self.ended = [], [], 0
        self.step = self.checkpoint = self.lines = 0
        self.recreated = 0
        values = {"first_heartbeat": 9, "heartbeat": 9, "restarts": 2, "wait": 0, "poll": 0.001}
        self.limits = Limits(**(values | limits))
        self.stop = StopRequest()

    def start(self, begun):
        self.started.append(begun)
        self.code, self.target, self.text = (*self.script.pop(0), "", "")[:3]
        return self

    def look(self):
        return Signs(self.lines, 0, self.step, self.checkpoint)

    def wait(self, seconds):
        if self.target > self.step:
            self.step += 1
            self.lines += 1
            self.checkpoint = self.step // 10 * 10
            return None
        return self.code

    def send(self, number):
        self.signals.append(number)
        self.code = 0

    def end(self, grace):
        self.ended += 1
        self.code = -9

    def close(self):
        return self.text

    def recreate(self):
        self.recreated += 1

    def run(self):
        supervisor = Supervisor(
            self.start, self.look, self.limits, self.stop, 40, before_restart=self.recreate
        )
        return supervisor.run()


def test_a_run_that_ends_is_complete():
    run = Run((0, 40))
    assert run.run().status == "COMPLETED"
    assert run.started == [False]
    assert not run.recreated


def test_a_crash_is_restarted_and_what_was_begun_is_not_begun_again():
    run = Run((1, 0), (-9, 13), (0, 40))
    assert run.run().status == "COMPLETED"
    assert run.started == [False, False, True]
    assert run.recreated == 2


def test_restarts_without_a_new_checkpoint_are_limited(caplog):
    run = Run((-9, 13), (1, 15), (1, 19), (1, 30), (0, 40), restarts=2)
    outcome = run.run()
    assert (outcome.status, outcome.code) == ("FAILED", 1)
    assert len(run.started) == 3
    assert "2 restarts in a row have led to no new checkpoint: giving up" in caplog.text


def test_a_new_checkpoint_starts_the_count_anew():
    run = Run((-9, 13), (1, 15), (1, 23), (1, 25), (0, 40), restarts=2)
    assert run.run().status == "COMPLETED"


def test_a_process_that_stalls_is_ended_and_restarted():
    run = Run((None, 13), (0, 40), heartbeat=0.1)
    assert run.run().status == "COMPLETED"
    assert run.ended == 1


def test_the_first_step_has_a_limit_of_its_own(caplog):
    run = Run((None, 0), restarts=0, first_heartbeat=0.1)
    outcome = run.run()
    assert outcome.status == "FAILED"
    assert outcome.reason == "the training process logged no step in its first 0 s"


@pytest.mark.parametrize("script", [(2, 0), (1, 15, NAN)])
def test_what_would_happen_again_is_not_restarted(script):
    run = Run(script)
    outcome = run.run()
    assert (outcome.status, outcome.code) == ("FAILED", script[0])
    assert len(run.started) == 1


def test_no_restart_is_possible():
    run = Run((-11, 13), restarts=0)
    outcome = run.run()
    assert outcome.reason == "the training process was killed by SIGSEGV"
    assert outcome.code == 1


def test_a_stop_is_passed_on_and_no_failure():
    run = Run((None, 12))

    def look():
        if run.step == 12 and not run.stop.signals:
            signal.raise_signal(signal.SIGTERM)
        return Run.look(run)

    run.look = look
    with run.stop:
        outcome = run.run()
    assert (outcome.status, outcome.code) == ("INTERRUPTED", 0)
    assert outcome.reason == "stopped by SIGTERM"
    assert run.signals == [signal.SIGTERM]


def test_a_process_that_others_stop_is_interrupted():
    outcome = Run((0, 12)).run()
    assert (outcome.status, outcome.reason) == (
        "INTERRUPTED",
        "the training process was stopped at 12",
    )


def test_a_stop_ends_the_wait_for_a_restart():
    run = Run((1, 12), wait=600.0)
    run.recreate = lambda: signal.raise_signal(signal.SIGINT)
    with run.stop:
        assert run.run().status == "INTERRUPTED"
    assert len(run.started) == 1


def test_the_third_signal_kills():
    run = Run()
    run.stop.process = run
    with run.stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
    assert run.signals == [signal.SIGINT, signal.SIGINT, signal.SIGKILL]
