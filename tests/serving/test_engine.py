"""Generation: the cache against the whole window, rows against themselves alone, and its options.

One model serves all tests: a window of 150 tokens, which is no multiple of the prefill's chunks,
one global and one local layer, and 34 embedding rows for 31 tokens.
"""

import logging
from pathlib import Path

import numpy as np
import pytest

from model_fns import Placement
from models import decoder as decoding
from serving.engine import Engine
from serving.requests import Completion, Sampling, fit_prompt
from tests.support import (
    Forward,
    cpus,
    make_config,
    mesh_layout,
    random_variables,
    write_checkpoint,
)
from utils.garbage import no_garbage_collection

N_CTX, TOKENS, ROWS, EOS, PADDING = 150, 31, 34, 5, 9
DATASET = {
    "n_vocab": TOKENS,
    "path": "none_*.tfrecords",
    "tokenizer_path": "none.json",
    "tokenizer_is_pretrained": False,
    "eos_id": EOS,
    "padding_id": PADDING,
}
GREEDY = Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=25, stop_id=None)
SAMPLED = Sampling(1.0, 0, 1.0, seed=3, max_new_tokens=25, stop_id=None)


def engine_config(**keys):
    sizes = {"n_ctx": N_CTX, "n_embd": 12, "n_vocab": ROWS, "local_attention_radius": 7}
    data = {"datasets": [DATASET], "eos_id": EOS, "padding_id": PADDING, "eval_batch_size": 1}
    return make_config(**(sizes | data | keys))


CONFIG = engine_config()


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, TOKENS, length).tolist()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    variables = random_variables(CONFIG, seed=12)
    # The rows that only pad the embedding have by far the largest logits of all: their part
    # along the final norm's bias outweighs what the normed vector can take away.
    direction = variables["gpt2/ln_f/b"] = np.full(12, 1.0, np.float32)
    variables["gpt2/wte"][TOKENS:] = 50.0 * direction
    # Without a leaning towards one token, so that greedy texts vary.
    usable = variables["gpt2/wte"][:TOKENS]
    usable -= usable.mean(1, keepdims=True)
    usable *= 2.0
    return write_checkpoint(tmp_path_factory.mktemp("serving"), variables, step=7)


# A small model's cache is shorter than the large chunk.
CHUNKS = {128: 64, 64: 0}


def make_engine(
    checkpoint: str, batch_size: int, config=CONFIG, devices=("",), chunks=CHUNKS
) -> Engine:
    split = mesh_layout(config.mesh_shape, config.layout)
    with no_garbage_collection(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "PREFILL_CHUNKS", chunks)
        engine = Engine(config, Placement(split, devices), batch_size)
    engine.load(checkpoint)
    return engine


@pytest.fixture(scope="module")
def engine(checkpoint):
    engine = make_engine(checkpoint, 4)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def single(checkpoint):
    engine = make_engine(checkpoint, 1)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def forward(checkpoint) -> Forward:
    return Forward(CONFIG, checkpoint)


@pytest.fixture(scope="module")
def uncached(forward):
    """Greedy continuation without a cache: the whole window again for every token."""

    def continue_(ids: list[int], count: int) -> list[int]:
        window = np.zeros((1, N_CTX), np.int32)
        window[0, : len(ids)] = ids
        for position in range(len(ids), min(len(ids) + count, N_CTX)):
            logits = forward(window)["logits"][0, position - 1]
            assert logits.argmax() >= TOKENS  # a padding row, if it were allowed
            window[0, position] = logits[:TOKENS].argmax()
        return window[0, len(ids) : position + 1].tolist()

    return continue_


def texts(engine: Engine, prompts, sampling: Sampling, samples: int = 1) -> list[list[int]]:
    """The continuations, prompt by prompt and sample by sample."""
    rows = engine.generate(prompts, sampling, samples)
    return [completion.continuation for completions in rows for completion in completions]


# --- greedy: the cache changes nothing -------------------------------------------------------

LENGTHS = [1, 2, 63, 64, 65, 66, 100, 128, 129, 130, 140, 149]


def test_cached_equals_uncached(engine, uncached):
    """Prompts around each border of the prefill's chunks, up to the end of the window."""
    prompts = [prompt(length) for length in LENGTHS]
    sampling = Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=None, stop_id=None)
    got = texts(engine, prompts, sampling)
    for ids, continuation in zip(prompts, got):
        assert len(continuation) == N_CTX - len(ids)  # fills the window
        expected = uncached(ids, 30)
        assert continuation[:30] == expected, len(ids)
    assert len(set(got[0])) > 5  # a varied text, or this would prove little


def test_the_large_chunk_is_fed(checkpoint, uncached):
    """Alone: with small chunks behind it, nobody would miss it."""
    engine = make_engine(checkpoint, 1, chunks={128: 64})
    assert texts(engine, [prompt(125)], GREEDY) == [uncached(prompt(125), 25)]
    # With 64 positions to be fed it is left to others, here to nobody.
    slots = engine._schedule._slots
    assert (slots.feed(prompt(65), 0), slots.feed(prompt(66), 0)) == (0, 128)
    engine.close()


def test_a_short_prompt_after_a_long_one(engine, single, uncached):
    """What the last text left in the cache is not seen."""
    short = prompt(3, seed=1)
    for some in (engine, single):
        before = texts(some, [short], GREEDY)
        texts(some, [prompt(120)], GREEDY)
        assert texts(some, [short], GREEDY) == before == [uncached(short, 25)]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_each_row_is_the_same_prompt_alone(engine, single, sampling):
    """Lengths in other chunks of the prefill side by side."""
    prompts = [prompt(length, seed=2) for length in (70, 1, 130, 17)]
    together = texts(engine, prompts, sampling)
    alone = [texts(single, [ids], sampling)[0] for ids in prompts]
    assert together == alone
    assert texts(engine, prompts[::-1], sampling) == alone[::-1]
    # More prompts than rows: the last batch is filled up with rows that do nothing.
    assert texts(engine, prompts + prompts[1:2], sampling) == alone + alone[1:2]


def test_no_token_of_a_prompt_is_special(engine, uncached):
    """0 (GPT-2's "!"), the padding id and the end of text inside a prompt."""
    prompts = [
        [0] * 10,
        [PADDING] * 70,
        [EOS, EOS, 3, EOS],
        [0, PADDING, EOS, 12, 0, PADDING, EOS],
        [7, 0, 0, 0, 0],
        [PADDING, 7, PADDING],
    ]
    got = texts(engine, prompts, Sampling(0.0, 0, 1.0, 0, max_new_tokens=12, stop_id=None))
    assert got == [uncached(ids, 12) for ids in prompts]
    stopping = engine.generate(prompts, Sampling(0.0, 0, 1.0, 0, max_new_tokens=12, stop_id=EOS))
    for [completion], full in zip(stopping, got):
        cut = full[: full.index(EOS)] if EOS in full else full
        assert completion.continuation == cut
        assert completion.stopped == (EOS in full)


@pytest.mark.parametrize(
    ("mesh_shape", "layout"),
    [("x:2,y:2", "batch:x,heads:y,vocab:y"), ("y:2", "embd:y")],
)
def test_split_over_a_mesh(checkpoint, single, mesh_shape, layout):
    prompts = [prompt(70, seed=2), prompt(5, seed=3)]
    config = engine_config(mesh_shape=mesh_shape, layout=layout, eval_batch_size=2)
    engine = make_engine(checkpoint, 2, config, cpus(config.mesh_size))
    for sampling in (GREEDY, SAMPLED):
        expected = [texts(single, [ids], sampling)[0] for ids in prompts]
        assert texts(engine, prompts, sampling) == expected
    engine.close()


# --- ends ------------------------------------------------------------------------------------


def test_max_new_tokens(engine):
    ids = prompt(20)
    whole = texts(engine, [ids], GREEDY)[0]
    for count in (1, 2, 24):
        sampling = Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=count, stop_id=None)
        assert texts(engine, [ids], sampling) == [whole[:count]]


def test_a_stop_token_ends_its_row_only(engine):
    prompts = [prompt(length, seed=4) for length in (4, 9, 30)]
    full = texts(engine, prompts, GREEDY)
    # A token of the first text that comes late there and not in all others.
    stop = next(token for token in full[0][3:] if any(token not in text for text in full))
    sampling = Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=25, stop_id=stop)
    for [completion], ids, text in zip(engine.generate(prompts, sampling), prompts, full):
        cut = text.index(stop) if stop in text else len(text)
        assert completion == Completion(ids, text[:cut], stop in text)


def test_an_empty_prompt_starts_a_document(engine):
    assert engine.generate([[]], GREEDY) == engine.generate([[EOS]], GREEDY)
    assert engine.generate([[]], GREEDY)[0][0].prompt == [EOS]


@pytest.mark.parametrize("length", [N_CTX - 24, N_CTX, N_CTX + 1, 1000])
def test_a_long_prompt_keeps_its_tail(engine, caplog, length):
    ids = prompt(length)
    with caplog.at_level(logging.WARNING, "serving.engine"):
        [[completion]] = engine.generate([ids], GREEDY)
    assert caplog.messages == [
        f"prompt of {length} tokens is longer than the 125 that the window of 150 leaves; its "
        "last 125 are used"
    ]
    assert completion.prompt == ids[-125:]
    assert len(completion.continuation) == 25
    assert [[completion]] == engine.generate([ids[-125:]], GREEDY)


def test_a_prompt_that_just_fits_is_kept_whole(engine, caplog):
    ids = prompt(N_CTX - 25)
    with caplog.at_level(logging.WARNING, "serving.engine"):
        [[completion]] = engine.generate([ids], GREEDY)
    assert not caplog.messages
    assert completion.prompt == ids
    assert len(completion.continuation) == 25


def test_a_prompt_that_fills_the_window_leaves_half_of_it(engine, caplog):
    sampling = Sampling(0.0, 0, 1.0, seed=0, max_new_tokens=None, stop_id=None)
    ids = prompt(N_CTX)
    with caplog.at_level(logging.WARNING, "serving.engine"):
        [[completion]] = engine.generate([ids], sampling)
    assert "prompt of 150 tokens is longer than the 75" in caplog.text
    assert completion.prompt == ids[75:]
    assert len(completion.continuation) == 75
    assert len(texts(engine, [prompt(N_CTX - 1)], sampling)[0]) == 1


def test_what_cannot_be_generated_is_refused_and_the_next_request_answered(engine):
    expected = texts(engine, [[3]], GREEDY)
    with pytest.raises(ValueError) as caught:
        engine.generate([[3], [4, ROWS, -1]], GREEDY)
    assert str(caught.value) == (
        "prompt ids must lie in [0, n_vocab = 34); got [34, -1]. Use the tokenizer that the model "
        "was trained with."
    )
    with pytest.raises(ValueError) as caught:
        engine.generate([[3]], Sampling(0.0, 0, 1.0, 0, max_new_tokens=N_CTX, stop_id=None))
    assert str(caught.value) == (
        "max_new_tokens must be below n_ctx = 150, to leave room for a prompt; got 150. Lower it."
    )
    assert texts(engine, [[3]], GREEDY) == expected


def test_fit_prompt_of_the_smallest_window():
    config = make_config(n_ctx=1)
    assert fit_prompt([4, 2, 3], config, None) == [3]
    assert fit_prompt([], make_config(n_ctx=2), None) == [1]


# --- sampling --------------------------------------------------------------------------------


def test_temperature_0_is_top_k_1_is_greedy(engine, uncached):
    ids = prompt(40, seed=6)
    expected = uncached(ids, 25)
    for sampling in (
        Sampling(0.0, 0, 1.0, 1, 25, None),
        Sampling(0.0, 7, 0.5, 1, 25, None),
        Sampling(1.5, 1, 1.0, 1, 25, None),
        Sampling(1.5, 0, 1e-6, 1, 25, None),
    ):
        assert texts(engine, [ids], sampling) == [expected], sampling


def test_a_seed_repeats_a_text_and_another_gives_another(engine):
    ids = prompt(8)
    first = texts(engine, [ids], SAMPLED)
    assert texts(engine, [ids], SAMPLED) == first
    assert texts(engine, [ids], Sampling(1.0, 0, 1.0, 4, 25, None)) != first
    assert texts(engine, [ids], GREEDY) != first


def test_every_position_has_its_own_noise(engine):
    """At a temperature at which all tokens are about as likely, equal noise would repeat one."""
    [text] = texts(engine, [prompt(8)], Sampling(1000.0, 0, 1.0, 3, 60, None))
    assert len(set(text)) > 15


def test_samples_of_one_prompt_differ_and_do_not_depend_on_their_number(engine, single):
    ids = prompt(8)
    samples = texts(engine, [ids], SAMPLED, samples=6)
    assert len(set(map(tuple, samples))) == 6
    assert texts(single, [ids], SAMPLED, samples=2) == samples[:2]
    assert texts(engine, [ids], SAMPLED) == samples[:1]
    # Prompt by prompt, and the samples of another prompt have nothing to do with it.
    both = engine.generate([prompt(11), ids], SAMPLED, samples=3)
    assert [completion.continuation for completion in both[1]] == samples[:3]


def test_samples_follow_the_model(engine, forward):
    """The first token of many samples against the softmax of the uncached logits."""
    ids = prompt(8)
    count = 2000
    sampling = Sampling(1.3, 0, 1.0, seed=0, max_new_tokens=1, stop_id=None)
    first = np.array(texts(engine, [ids], sampling, count))[:, 0]
    window = np.zeros((1, N_CTX), np.int32)
    window[0, :8] = ids
    scaled = forward(window)["logits"][0, 7, :TOKENS].astype(np.float64) / 1.3
    expected = np.exp(scaled - scaled.max())
    expected *= count / expected.sum()
    counts = np.bincount(first, minlength=TOKENS)
    often = expected > 5
    assert often.sum() > 5
    chi_square = ((counts - expected)[often] ** 2 / expected[often]).sum()
    assert chi_square < often.sum() + 4.5 * np.sqrt(2 * often.sum())


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, Sampling(50.0, 33, 1.0, 0, 100, None)])
def test_padding_rows_are_never_drawn(engine, forward, sampling):
    """Although they have by far the largest logits."""
    logits = forward(np.zeros((1, N_CTX), np.int32))["logits"][0]
    assert (logits[:, TOKENS:].min(1) > logits[:, :TOKENS].max(1) + 10).all()
    drawn = np.concatenate([np.array(text) for text in texts(engine, [[3], [4]], sampling, 4)])
    assert drawn.max() < TOKENS


def test_settings_come_from_the_config_unless_given():
    config = engine_config(temperature=0.7, top_k=-2, top_p=0.8, predict_max_steps=12, seed=4)
    assert Sampling.from_config(config) == Sampling(0.7, 3, 0.8, 4, 12, EOS)  # a tenth of 34
    given = {"temperature": 0.0, "top_k": 5, "top_p": None, "seed": 0, "max_new_tokens": 3}
    assert Sampling.from_config(config, **given) == Sampling(0.0, 5, 0.8, 0, 3, EOS)
    assert Sampling.from_config(CONFIG) == Sampling(0.9, 0, 1.0, 0, None, EOS)


def test_seeds_of_samples_are_distinct_and_fit_into_32_bits():
    seeds = [
        Sampling(1.0, 0, 1.0, seed, None, None).seed_of_sample(number)
        for seed in (0, 1, 2**31 - 1, 2**31, 2**40)
        for number in range(100)
    ]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len(set(seeds)) >= 495  # seeds 0 and 2**31 have their first sample in common


# --- checkpoints -----------------------------------------------------------------------------


def test_the_step_and_the_weights_are_those_of_the_loaded_checkpoint(
    single, checkpoint, tmp_path: Path
):
    assert single.step == 7
    before = texts(single, [[3]], GREEDY)
    other = random_variables(CONFIG, seed=13)
    try:
        single.load(write_checkpoint(tmp_path, other, step=11))
        assert single.step == 11
        assert texts(single, [[3]], GREEDY) != before
    finally:
        single.load(checkpoint)
    assert texts(single, [[3]], GREEDY) == before
