"""OpenAI's interface, with OpenAI's client and a real server."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from tokenizers import Tokenizer

from configs.load import load_config
from serving.requests import Sampling
from tests.serving.server.running import N_CTX, NAME, STEP
from tests.support import Forward
from utils.checkpoints import latest_checkpoint

GREEDY = {"temperature": 0.0}
PROMPT = "the night train"


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def ask(client):
    """Completes with some settings."""

    def complete(prompt, **settings):
        return client.completions.create(model=NAME, prompt=prompt, **settings)

    return complete


@pytest.fixture(scope="module")
def tokenizer(model_config):
    return Tokenizer.from_file(str(model_config.parent / "tokenizer.json"))


def texts(answer) -> list[str]:
    return [choice.text for choice in answer.choices]


def test_the_model_is_listed(client):
    [model] = client.models.list().data
    assert (model.id, model.object) == (NAME, "model")
    assert (model.max_model_len, model.step) == (N_CTX, STEP)
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError, match=f'model must be "{NAME}"; got "davinci"'):
        client.models.retrieve("davinci")
    with pytest.raises(openai.NotFoundError, match='got "davinci"') as caught:
        client.completions.create(model="davinci", prompt="a")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_log_probabilities_are_those_of_the_model(ask, tokenizer, model_config):
    """Against the evaluation graph on the whole window; so the texts are the model's, too."""
    answer = ask(PROMPT, **GREEDY, max_tokens=9, logprobs=3)
    [choice] = answer.choices
    scores = choice.logprobs
    ids = tokenizer.encode(PROMPT).ids
    written = tokenizer.encode(choice.text).ids
    assert "".join(scores.tokens) == choice.text and len(scores.tokens) == 9
    config = load_config(str(model_config))
    checkpoint = latest_checkpoint(config.model_path)
    window = np.zeros((1, N_CTX), np.int32)
    names = [tokenizer.id_to_token(number).replace("Ġ", " ") for number in range(60)]
    drawn = [names.index(token) for token in scores.tokens]
    assert tokenizer.decode(drawn) == tokenizer.decode(written)
    window[0, : len(ids) + 9] = [*ids, *drawn]
    logits = Forward(config, checkpoint)(window)["logits"][0, len(ids) - 1 :][:9].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert scores.token_logprobs == pytest.approx(expected.max(1), abs=1e-4)
    for row, top in zip(expected, scores.top_logprobs):
        best = np.argsort(-row)[:3]
        assert top == pytest.approx({names[one]: row[one] for one in best}, abs=1e-4)
    assert scores.text_offset == [len("".join(scores.tokens[:n])) for n in range(9)]


def test_numbers_of_tokens_and_the_reason_of_the_end(ask, tokenizer):
    answer = ask([PROMPT, "a"], n=2, max_tokens=5, seed=1)
    count = len(tokenizer.encode(PROMPT).ids) + len(tokenizer.encode("a").ids)
    assert answer.usage.prompt_tokens == count
    assert answer.usage.completion_tokens == 4 * 5
    assert answer.usage.total_tokens == count + 20
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 4
    # Each answer is that of the prompt alone, and samples differ.
    assert texts(answer) == texts(ask(PROMPT, n=2, max_tokens=5, seed=1)) + texts(
        ask("a", n=2, max_tokens=5, seed=1)
    )
    assert len(set(texts(answer))) == 4
    assert ask("a").usage.completion_tokens == 16


def test_prompts_of_token_ids(ask, tokenizer):
    ids = tokenizer.encode(PROMPT).ids
    [expected] = texts(ask(PROMPT, **GREEDY))
    assert texts(ask(ids, **GREEDY)) == [expected]
    assert texts(ask([ids, ids], **GREEDY)) == [expected] * 2


def test_an_empty_text_begins_a_document(ask, tokenizer):
    [expected] = texts(ask([tokenizer.token_to_id("<|endoftext|>")], **GREEDY))
    assert texts(ask("", **GREEDY)) == [expected]
    assert texts(ask("", echo=True, **GREEDY)) == [expected]


def test_a_seed_repeats_a_text_and_none_does_not(ask):
    assert texts(ask(PROMPT, seed=3)) == texts(ask(PROMPT, seed=3))
    assert texts(ask(PROMPT, seed=3)) != texts(ask(PROMPT, seed=4))
    assert texts(ask(PROMPT)) != texts(ask(PROMPT))


def test_settings_that_openai_does_not_have(ask):
    [greedy] = texts(ask(PROMPT, **GREEDY))
    assert texts(ask(PROMPT, seed=1, extra_body={"top_k": 1})) == [greedy]
    assert texts(ask(PROMPT, seed=1, top_p=1e-6)) == [greedy]
    penalized = ask(PROMPT, **GREEDY, extra_body={"repetition_penalty": 5.0})
    assert texts(penalized) != [greedy]


def test_stop_strings(ask):
    [text] = texts(ask(PROMPT, **GREEDY, max_tokens=30))
    stop = text[10:13]
    for given in (stop, ["no such text", stop]):
        [choice] = ask(PROMPT, **GREEDY, max_tokens=30, stop=given).choices
        assert choice.text == text[: text.index(stop)]
        assert choice.finish_reason == "stop"
    # In a stream, nothing of it is shown before it is taken back.
    parts = list(ask(PROMPT, **GREEDY, max_tokens=30, stop=stop, stream=True))
    assert "".join(part.choices[0].text for part in parts) == text[: text.index(stop)]
    assert parts[-1].choices[0].finish_reason == "stop"


def test_echo(ask):
    [text] = texts(ask(PROMPT, **GREEDY))
    assert texts(ask(PROMPT, echo=True, **GREEDY)) == [PROMPT + text]
    parts = list(ask(PROMPT, echo=True, stream=True, **GREEDY))
    assert parts[0].choices[0].text == PROMPT
    assert "".join(part.choices[0].text for part in parts) == PROMPT + text


def test_a_stream_is_the_answer_in_pieces(ask):
    settings = {"n": 2, "seed": 6, "max_tokens": 40, "logprobs": 2}
    whole = ask([PROMPT, "an old man"], **settings)
    options = {"include_usage": True}
    *parts, last = ask([PROMPT, "an old man"], **settings, stream=True, stream_options=options)
    assert last.choices == [] and last.usage == whole.usage
    assert {part.usage for part in parts} == {None}
    assert {part.id for part in parts} == {last.id}
    choices = [choice for part in parts for choice in part.choices]
    for expected in whole.choices:
        mine = [choice for choice in choices if choice.index == expected.index]
        assert "".join(choice.text for choice in mine) == expected.text
        assert len(mine) > 30
        assert [one.finish_reason for one in mine] == [None] * (len(mine) - 1) + ["length"]
        scored = [one.logprobs for one in mine if one.logprobs]
        for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [value for one in scored for value in getattr(one, field)]
            assert joined == getattr(expected.logprobs, field), field


def test_the_first_part_comes_before_the_last_is_written(server, ask):
    stream = ask(PROMPT, max_tokens=N_CTX - 20, stream=True)
    assert next(iter(stream)).choices[0].text
    assert server.metric("serve_texts_running") == 1
    stream.close()
    server.wait_until(running=0, waiting=0)


def test_halves_of_characters(ask, tokenizer):
    """é is two tokens: a text shows whole characters, its tokens are spelled as bytes."""
    settings = {"temperature": 9.0, "n": 30, "seed": 2, "max_tokens": 15, "logprobs": 0}
    scored = [(choice.text, choice.logprobs) for choice in ask("caf", **settings).choices]
    spelled = {token for _, scores in scored for token in scores.tokens}
    assert {r"bytes:\xc3", r"bytes:\xa9"} <= spelled
    assert not any("bytes" in text for text, _ in scored)
    for text, scores in scored:
        for token, begin in zip(scores.tokens, scores.text_offset):
            assert text.startswith(token, begin) or token.startswith("bytes:")
    # The prompt may end within a character: what completes it belongs to the answer.
    half, _ = tokenizer.encode("é").ids
    answers = [ask([half], **(settings | {"max_tokens": 1, "seed": seed})) for seed in range(9)]
    choices = [choice for answer in answers for choice in answer.choices]
    completed = [x.text for x in choices if x.logprobs.tokens == [r"bytes:\xa9"]]
    assert completed and set(completed) == {"é"}


def test_many_clients_at_once(ask):
    """More than are written at once; each gets what it gets alone."""
    requests = [
        (
            "an old man ran after her hat " * (number % 4) + "a",
            {"seed": number, "n": 1 + number % 2},
        )
        for number in range(14)
    ]
    requests = [
        (text, settings | {"max_tokens": 5 + 7 * settings["seed"]}) for text, settings in requests
    ]
    alone = [texts(ask(text, **settings)) for text, settings in requests]
    with ThreadPoolExecutor(len(requests)) as pool:
        futures = [pool.submit(ask, text, **settings) for text, settings in requests]
        assert [texts(future.result()) for future in futures] == alone


def test_of_a_prompt_longer_than_the_window_the_end_is_used(ask, tokenizer):
    prompt = "the night train was standing at a little café and " * 100
    ids = tokenizer.encode(prompt).ids
    assert len(ids) > N_CTX
    room = N_CTX - 12
    answer = ask(prompt, **GREEDY, max_tokens=12)
    assert answer.usage.prompt_tokens == room
    assert texts(answer) == texts(ask(ids[-room:], **GREEDY, max_tokens=12))
    message = f"prompt 1 has {len(ids)} tokens; its last {room} are used"
    assert answer.warnings == [message]
    first, *parts = ask(["a", prompt], **GREEDY, max_tokens=12, stream=True)
    assert first.warnings == [message.replace("prompt 1", "prompt 2")]
    assert not any(hasattr(part, "warnings") for part in parts)
    assert texts(ask(prompt, echo=True, **GREEDY, max_tokens=1))[0].startswith(
        tokenizer.decode(ids[1 - N_CTX :])
    )
    assert not hasattr(ask("a"), "warnings")


def test_defaults_are_those_of_the_config(model_config, ask):
    config = load_config(str(model_config))
    sampling = Sampling.from_config(config)
    given = {"temperature": sampling.temperature, "top_p": sampling.top_p}
    more = {"top_k": sampling.top_k, "repetition_penalty": sampling.repetition_penalty}
    explicit = ask(PROMPT, seed=9, max_tokens=30, **given, extra_body=more)
    assert texts(ask(PROMPT, seed=9, max_tokens=30)) == texts(explicit)


def test_fields_whose_value_asks_for_nothing(ask):
    """As clients send them unasked."""
    neutral = {"best_of": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}}
    assert texts(ask(PROMPT, **GREEDY, **neutral, user="me", suffix="")) == texts(
        ask(PROMPT, **GREEDY)
    )


def test_metrics_count(server, ask):
    names = {
        "requests": 'serve_requests_total{route="/v1/completions",status="200"}',
        "prompts": "serve_prompt_tokens_total",
        "written": "serve_completion_tokens_total",
        "seconds": 'serve_request_seconds_count{route="/v1/completions"}',
        "first": "serve_first_token_seconds_count",
    }
    before = {key: server.metric(name) for key, name in names.items()}
    answer = ask(["a", "the"], n=2, max_tokens=3)
    more = {key: server.metric(name) - before[key] for key, name in names.items()}
    prompts = answer.usage.prompt_tokens
    assert more == {"requests": 1, "prompts": prompts, "written": 12, "seconds": 1, "first": 1}
    assert server.metric("process_resident_memory_bytes") > 1e8


def test_the_description_of_the_interface(server):
    status, _, description = server.ask("GET", "/openapi.json")
    assert status == 200
    body = description["paths"]["/v1/completions"]["post"]["requestBody"]
    fields = body["content"]["application/json"]["schema"]["properties"]
    assert {"prompt", "max_tokens", "stream", "repetition_penalty"} <= fields.keys()
    assert "http" not in json.dumps(description)  # no page elsewhere
