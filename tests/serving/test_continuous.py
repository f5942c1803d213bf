"""Continuous batching: texts that come and go, and what their readers see.

One model serves all tests; it has every kind of layer that keeps something of a text: global,
local and linear attention, learned memory slots, and experts. Rows of its vocabulary are letters.
"""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from model_fns import Placement
from models import decoder as decoding
from serving.engine import Engine
from serving.requests import QueueFull, Request, Sampling
from tests.support import (
    Forward,
    initial_variables,
    large_weights,
    make_config,
    mesh_layout,
    write_checkpoint,
)
from utils.garbage import no_garbage_collection

N_CTX, VOCAB, SLOTS, MOST_WAITING = 150, 22, 3, 5
CONFIG = make_config(
    n_ctx=N_CTX,
    n_embd=12,
    n_layer=3,
    attention_types=[[["global", "local", "linear"], 1]],
    local_attention_radius=7,
    num_mem_kv=3,
    moe_layers=[1],
    moe_params={"moe_num_experts": 5},
    no_weight_tie=True,
    eval_batch_size=1,
)
GREEDY = Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=20, stop_id=None)
SETTINGS = [
    GREEDY,
    Sampling(1.0, 0, 1.0, seed=3, max_new_tokens=31, stop_id=None),
    Sampling(0.8, 5, 1.0, seed=4, max_new_tokens=9, stop_id=7),
    Sampling(1.4, 0, 0.7, seed=5, max_new_tokens=None, stop_id=2, repetition_penalty=1.3),
    Sampling(1.0, 0, 1.0, seed=6, max_new_tokens=14, stop_id=None, entmax=True, logprobs=3),
    Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=20, stop_id=None, repetition_penalty=4.0),
    Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=1, stop_id=None, logprobs=0),
]
LENGTHS = [70, 1, 129, 2, 17, 64, 65, 100, 5, 128, 66, 3, 90, 30]


class Letters:
    """Tokens are letters, but for one that no tokenizer knows, and two halves of a character."""

    is_byte_level = True
    unknown, halves = VOCAB - 1, (VOCAB - 3, VOCAB - 2)

    def __init__(self):
        self.token_bytes = {number: bytes([ord("a") + number]) for number in range(VOCAB - 1)}
        self.token_bytes |= dict(zip(self.halves, (b"\xc3", b"\xa9")))

    def decode(self, ids):
        raise ValueError(f"unknown {ids}")


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, VOCAB - 1, length).tolist()


@pytest.fixture(scope="module")
def variables():
    values = {
        name: 2 * large_weights(name, value.shape)
        for name, value in initial_variables(CONFIG).items()
        if name != "global_step"
    }
    # Logits of a few units; the unknown token is all but never drawn.
    scope = "gpt2/wte_final_linear/conv1d_main/linear_out"
    values[f"{scope}/kernel"] *= 0.05
    values[f"{scope}/kernel"][:, -1] = 0
    values[f"{scope}/bias"][-1] = -30
    return values


@pytest.fixture(scope="module")
def checkpoint(variables, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("continuous"), variables, step=7)


def make_engine(checkpoint, tokenizer=None):
    with no_garbage_collection(), pytest.MonkeyPatch.context() as patch:
        # A small model's cache is shorter than the large chunk.
        patch.setattr(decoding, "PREFILL_CHUNKS", {64: 0})
        placement = Placement(mesh_layout("x:1", ""), ("",))
        engine = Engine(CONFIG, placement, SLOTS, tokenizer, MOST_WAITING)
    engine.load(checkpoint)
    return engine


@pytest.fixture(scope="module")
def engine(checkpoint):
    engine = make_engine(checkpoint, Letters())
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def forward(checkpoint):
    return Forward(CONFIG, checkpoint)


@pytest.fixture
def calls(engine, monkeypatch):
    """What the engine runs, in order: chunks of prompts, insertions, steps."""
    slots, log = engine._schedule._slots, []
    for name in ("feed", "insert", "step"):
        monkeypatch.setattr(slots, name, logged(name, getattr(slots, name), log))
    return log


def logged(name, run, log):
    def call(*values):
        result = run(*values)
        if name != "feed" or result != values[1]:  # there was something to feed
            log.append(name)
        return result

    return call


def alone(engine, ids, sampling):
    return engine.submit(Request(ids, sampling)).result()


# --- a text is the same whatever is beside it ------------------------------------------------


@pytest.fixture(scope="module")
def requests():
    settings = [replace(SETTINGS[n % len(SETTINGS)], seed=n) for n in range(len(LENGTHS))]
    return [Request(prompt(length), sampling) for length, sampling in zip(LENGTHS, settings)]


@pytest.fixture(scope="module")
def expected(engine, requests):
    return [alone(engine, request.prompt, request.sampling) for request in requests]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_texts_that_come_and_go_are_the_same_alone(engine, requests, expected, seed):
    """More than there are slots, in any order, some of them while others are being written."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(requests))
    running = {}
    for number in order:
        while len([one for one in running.values() if not one.ended]) > MOST_WAITING:
            time.sleep(0.001)
        running[number] = engine.submit(requests[number])
        if random.random() < 0.4:
            next(iter(running[number]))
    for number, generation in running.items():
        result = generation.result()
        assert result.continuation == expected[number].continuation, number
        assert result.stopped == expected[number].stopped
        for left, right in zip(result.scores, expected[number].scores):
            assert left.log_probability == pytest.approx(right.log_probability, abs=1e-4)
    texts = [tuple(one.continuation) for one in expected]
    assert len(set().union(*texts)) > 10  # varied, or this would prove little
    assert {one.stopped for one in expected} == {True, False}


def test_many_threads(engine, requests, expected):
    got = {}

    def ask(numbers):
        for number in numbers:
            [[got[number]]] = engine.generate([requests[number].prompt], requests[number].sampling)

    threads = [threading.Thread(target=ask, args=[range(n, len(requests), 4)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[n].continuation for n in range(len(requests))] == [
        one.continuation for one in expected
    ]


def test_events_are_the_text_piece_by_piece(engine, expected, requests):
    for request, whole in zip(requests[:5], expected):
        events = list(engine.submit(request))
        assert "".join(event.text for event in events) == whole.text
        tokens = [written.token for event in events for written in event.tokens]
        assert tokens == whole.continuation
        assert len(events) > len(tokens) / 2


# --- order of work ---------------------------------------------------------------------------


def test_texts_go_on_between_the_chunks_of_a_prompt(engine, calls):
    first = engine.submit(Request(prompt(1), replace(GREEDY, max_new_tokens=149)))
    next(iter(first))
    del calls[:]
    second = engine.submit(Request(prompt(140), replace(GREEDY, max_new_tokens=1)))
    second.result()
    first.result()
    assert [x for x in calls if x != "step"] == ["feed", "feed", "feed", "insert"]
    chunks = [number for number, call in enumerate(calls) if call == "feed"]
    assert all(right - left == 2 for left, right in zip(chunks, chunks[1:])), calls


def test_samples_of_a_prompt_feed_it_once(engine, calls):
    sampling = replace(SETTINGS[1], max_new_tokens=6)
    [samples] = engine.generate([prompt(120)], sampling, samples=7)
    assert calls.count("feed") == 2
    assert calls.count("insert") == 7
    del calls[:]
    assert [one.continuation for one in samples] == [
        alone(engine, prompt(120), sampling.of_sample(number)).continuation for number in range(7)
    ]
    assert "feed" not in calls
    # Other weights make something else of it.
    assert len({tuple(one.continuation) for one in samples}) == 7


def test_the_next_one_takes_the_place_of_one_that_ends(engine, calls):
    sampling = replace(GREEDY, max_new_tokens=100)
    long = [engine.submit(Request(prompt(2), sampling)) for _ in range(SLOTS - 1)]
    little = replace(GREEDY, max_new_tokens=4)
    short = [engine.submit(Request(prompt(3), little)) for _ in range(MOST_WAITING - SLOTS + 1)]
    for generation in short:
        generation.result()
    assert not any(generation.ended for generation in long)
    for generation in long:
        assert len(generation.result().continuation) == 100
    assert 100 <= calls.count("step") <= 103


# --- scores and the penalty ------------------------------------------------------------------


def logits_of(forward, text):
    window = np.zeros((1, N_CTX), np.int32)
    window[0, : len(text)] = text
    return forward(window)["logits"][0, : len(text)].astype(np.float64)


def test_log_probabilities_are_the_models_own(engine, forward):
    sampling = Sampling(2.0, 3, 0.9, 1, 12, None, repetition_penalty=1.5, logprobs=5)
    done = alone(engine, prompt(40), sampling)
    logits = logits_of(forward, done.prompt + done.continuation)[39:-1]
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert len(done.scores) == 12
    for row, token, scores in zip(expected, done.continuation, done.scores):
        assert scores.log_probability == pytest.approx(row[token], abs=2e-4)
        assert [token for token, _ in scores.top] == (-row).argsort()[:5].tolist()
        assert [value for _, value in scores.top] == pytest.approx(
            sorted(row, reverse=True)[:5], abs=2e-4
        )


@pytest.mark.parametrize("count", [0, 2])
def test_as_many_scores_as_are_asked_for(engine, count):
    done = alone(engine, [3], replace(GREEDY, logprobs=count, max_new_tokens=3))
    assert [len(scores.top) for scores in done.scores] == [count] * 3
    assert alone(engine, [3], replace(GREEDY, max_new_tokens=3)).scores == ()


def test_the_penalty_is_on_prompt_and_continuation(engine, forward):
    ids = [4, 9, 4]
    done = alone(engine, ids, replace(GREEDY, repetition_penalty=3.0))
    for number, token in enumerate(done.continuation):
        so_far = ids + done.continuation[:number]
        row = logits_of(forward, so_far)[-1]
        for seen in set(so_far):
            row[seen] = row[seen] / 3.0 if row[seen] > 0 else row[seen] * 3.0
        assert row[token] >= row.max() - 1e-4
    assert done.continuation != alone(engine, ids, GREEDY).continuation


# --- stop strings ----------------------------------------------------------------------------


def test_a_stop_string_over_several_tokens_ends_a_text(engine, requests, expected):
    whole = expected[1].text
    stop = whole[4:7]
    at = whole.index(stop)
    sampling = replace(requests[1].sampling, stop=(stop, "never"))
    beside = engine.submit(requests[0])
    generation = engine.submit(Request(requests[1].prompt, sampling))
    assert "".join(event.text for event in generation) == whole[:at]
    done = generation.result()
    assert (done.text, done.stopped) == (whole[:at], True)
    assert done.continuation == expected[1].continuation[: len(done.continuation)]
    assert beside.result() == expected[0]
    unmatched = alone(engine, requests[1].prompt, replace(sampling, stop=(whole[-1] + "zz",)))
    assert (unmatched.text, unmatched.stopped) == (whole, False)  # held back, then shown


# --- requests that fail, are cancelled, or are too many ----------------------------------------


def test_a_failing_request_fails_alone(engine, requests, expected):
    good = [engine.submit(requests[number]) for number in (0, 2)]
    # High temperatures draw the token that the tokenizer does not know before long.
    bad = engine.submit(Request([1], Sampling(1000.0, 0, 1.0, 1, 149, None)))
    with pytest.raises(ValueError, match="unknown"):
        bad.result()
    with pytest.raises(ValueError, match="unknown"):
        list(bad)
    assert [one.result() for one in good] == [expected[0], expected[2]]


@pytest.mark.parametrize("graph", ["step", "feed"])
def test_after_a_failed_run_the_next_request_is_answered(engine, monkeypatch, graph, expected):
    slots = engine._schedule._slots

    def fail(*values):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(slots, graph, fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            alone(engine, prompt(69, seed=1), GREEDY)
    assert alone(engine, prompt(70), replace(SETTINGS[0], seed=0)) == expected[0]


def test_an_error_of_the_engine_itself_reaches_its_readers(engine, monkeypatch, caplog, expected):
    with monkeypatch.context() as patch:
        patch.setattr(engine._schedule, "_advance", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            alone(engine, [3], GREEDY)
    assert "the engine failed" in caplog.text
    assert alone(engine, prompt(70), replace(SETTINGS[0], seed=0)) == expected[0]


def test_a_cancelled_text_leaves_its_slot(engine):
    long = replace(GREEDY, max_new_tokens=149)
    running = [engine.submit(Request([3], long)) for _ in range(SLOTS)]
    waiting = engine.submit(Request([4], long))
    next(iter(running[0]))
    waiting.cancel()
    assert waiting.result().cancelled
    running[0].cancel()
    running[0].cancel()
    done = running[0].result()
    assert done.cancelled
    assert 0 < len(done.continuation) < 149
    assert list(running[0])[-1].tokens[-1].token == done.continuation[-1]
    assert len(alone(engine, [5], replace(GREEDY, max_new_tokens=2)).continuation) == 2
    assert not running[1].ended
    assert running[1].result().continuation[: len(done.continuation)] == done.continuation
    running[2].result()


def test_what_waits_is_bounded(engine):
    long = Request([3], replace(GREEDY, max_new_tokens=149))
    accepted = []
    with pytest.raises(QueueFull) as caught:
        for _ in range(SLOTS + MOST_WAITING + 1):
            accepted.append(engine.submit(long))
    assert str(caught.value) == (
        f"the engine's queue must have room; got {MOST_WAITING} of {MOST_WAITING} places taken, 1 "
        "wanted. Ask again later."
    )
    running, waiting = engine.counts()
    assert running <= SLOTS and waiting == MOST_WAITING
    accepted[-1].cancel()  # a place in the queue
    accepted.append(engine.submit(long))
    for generation in accepted:
        generation.cancel()
    # Whoever waits for the answers anyway waits for room, too.
    [many] = engine.generate([[3]], replace(GREEDY, max_new_tokens=2), samples=4 * MOST_WAITING)
    assert len(many) == 4 * MOST_WAITING


def test_requests_that_belong_together_are_taken_together_or_not_at_all(engine):
    request = Request([3], replace(GREEDY, max_new_tokens=2))
    with pytest.raises(QueueFull, match=f"places taken, {MOST_WAITING + 1} wanted"):
        engine.submit_all([request] * (MOST_WAITING + 1))
    with pytest.raises(ValueError, match="prompt ids must lie in"):
        engine.submit_all([request, replace(request, prompt=[VOCAB])])
    assert engine.counts() == (0, 0)
    made = engine.submit_all([request] * MOST_WAITING)
    assert len({tuple(one.result().continuation) for one in made}) == 1


def test_a_reader_that_does_not_wait_is_told_of_every_change(engine):
    told = threading.Semaphore(0)
    generation = engine.submit(Request([3], GREEDY))
    generation.watch(told.release)
    events = []
    while not generation.ended or generation.news(len(events)):
        events += generation.news(len(events))
        if not generation.ended:
            assert told.acquire(timeout=20)
    assert events == list(generation)
    generation = engine.submit(Request([3], replace(GREEDY, max_new_tokens=149)))
    generation.watch(told.release)
    while told.acquire(blocking=False):
        pass
    generation.cancel()
    assert told.acquire(timeout=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": float("nan")}, "temperature must be from 0 to 3e38; got nan."),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1; got 0.0."),
        ({"top_k": -1}, "top_k must be at least 0; got -1."),
        ({"max_new_tokens": 0}, "max_new_tokens must be above 0; got 0."),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be from 1e-37 to 3e38; got 0.0."),
        ({"logprobs": 6}, "logprobs must be from 0 to 5; got 6."),
        ({"stop": ("a", "")}, "stop must be strings of at least one character; got ('a', '')."),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError) as caught:
        replace(GREEDY, **settings)
    assert str(caught.value) == f"{message} Change or leave it out."


# --- checkpoints and the end -----------------------------------------------------------------


def test_loading_waits_for_what_runs_and_goes_on_with_what_waits(
    engine, variables, checkpoint, tmp_path
):
    other = write_checkpoint(tmp_path, {n: 0.9 * v for n, v in variables.items()}, step=9)
    sampling = replace(GREEDY, max_new_tokens=60)
    before = alone(engine, prompt(70), sampling)
    running = [engine.submit(Request(prompt(70), sampling)) for _ in range(SLOTS + 2)]
    next(iter(running[0]))
    try:
        engine.load(other)
        assert engine.step == 9
        assert running[0].result() == before
        after = alone(engine, prompt(70), sampling)  # nothing is left of the prompt that was fed
        assert after.continuation != before.continuation
        assert [one.result() for one in running[SLOTS:]] == [after, after]
    finally:
        engine.load(checkpoint)
    assert alone(engine, prompt(70), sampling) == before


def test_closing(checkpoint):
    sampling = replace(GREEDY, max_new_tokens=100)
    for finishes in (True, False):
        engine = make_engine(checkpoint)
        with pytest.raises(ValueError, match="stop must be left out where the engine has no tok"):
            engine.submit(Request([3], replace(sampling, stop=("a",))))
        running = [engine.submit(Request([3], sampling)) for _ in range(SLOTS + 1)]
        next(iter(running[0]))
        engine.close(finishes)
        done = [one.result() for one in running]
        assert [one.cancelled for one in done] == [not finishes] * (SLOTS + 1)
        assert (
            {len(one.continuation) for one in done} == {100}
            if finishes
            else max(len(one.continuation) for one in done) < 100
        )
        with pytest.raises(RuntimeError, match="the engine must be open to take requests"):
            engine.submit(Request([3], sampling))
        engine.close()
        assert not [x for x in threading.enumerate() if x.name == "engine"]
