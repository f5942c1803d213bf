"""What cannot be answered is told in a 4xx that names the field, and harms nobody else."""

import re
import socket
import time

import pytest

from tests.serving.server.running import LONG, N_CTX, NAME

URL = "/v1/completions"
GOOD = {"prompt": "a", "max_tokens": 1, "temperature": 0}
SURROGATE = b'{"prompt": "\\ud800"}'

# Body, field that is named, message.
WRONG = {
    "no JSON": (b'{"prompt": ', None, "body must be JSON in UTF-8: Expecting value"),
    "no UTF-8": (b'{"prompt": "\xff"}', None, "body must be JSON in UTF-8: 'utf-8' codec"),
    "empty": (b"", None, "body must be JSON in UTF-8: Expecting value"),
    "deep": (b"[" * 90_000, None, "body must be JSON in UTF-8: must be nested at most"),
    "digits": (b'{"n": ' + b"9" * 5000 + b"}", None, "body must be JSON in UTF-8:"),
    "NaN": (b'{"prompt": "a", "temperature": NaN}', None, "NaN is not a JSON number"),
    "Infinity": (b'{"prompt": "a", "top_p": Infinity}', None, "Infinity is not a JSON number"),
    "overflow": (
        b'{"prompt": "a", "temperature": 1e999}',
        "temperature",
        "temperature must be from 0 to 3e38; got inf",
    ),
    "float32": (
        {"prompt": "a", "repetition_penalty": 1e39},
        "repetition_penalty",
        "repetition_penalty must be from 1e-37 to 3e38; got 1e+39",
    ),
    "a list": ([GOOD], None, 'body must be a JSON object; got [{"prompt": "a"'),
    "twice": (b'{"prompt": "a", "prompt": "b"}', "prompt", "prompt: is given twice"),
    "surrogate": (SURROGATE, "prompt", 'and not an empty list; got "\\ud800"'),
    "surrogates": (b'{"prompt": "a", "stop": ["\\ud800"]}', "stop", "or at most 16 of them; got"),
    "unknown": (
        {"prompt": "a", "temprature": 1},
        "temprature",
        "temprature must be a field of this request; got 1. Did you mean temperature?",
    ),
    "unlike any": (
        {"prompt": "a", "xyz": [1]},
        "xyz",
        "xyz must be a field of this request; got [1]. Remove it.",
    ),
    "no prompt": ({}, "prompt", "prompt must be given; got none. Add it."),
    "null prompt": (
        {"prompt": None},
        "prompt",
        "prompt must be a text of Unicode characters, a list",
    ),
    "number": ({"prompt": 7}, "prompt", "prompt must be a text of Unicode characters, a list"),
    "no prompts": ({"prompt": []}, "prompt", "and not an empty list; got []"),
    "no ids": ({"prompt": [[]]}, "prompt", "and not an empty list; got [[]]"),
    "mixed": (
        {"prompt": [1, "a"]},
        "prompt",
        "prompt must be a text of Unicode characters, a list",
    ),
    "true": ({"prompt": [True]}, "prompt", "prompt must be a text of Unicode characters, a list"),
    "id": ({"prompt": [60]}, "prompt", "prompt ids must lie in [0, n_vocab = 60); got [60]"),
    "negative id": (
        {"prompt": [[1], [-1]]},
        "prompt",
        "prompt ids must lie in [0, n_vocab = 60); got [-1]",
    ),
    "text": (
        {"prompt": "a", "temperature": "1"},
        "temperature",
        'temperature must be a valid number; got "1". Change or leave it out.',
    ),
    "boolean": ({"prompt": "a", "top_k": True}, "top_k", "top_k must be a valid integer; got true"),
    "fraction": ({"prompt": "a", "n": 1.5}, "n", "n must be a valid integer; got 1.5"),
    "stream": ({"prompt": "a", "stream": 1}, "stream", "stream must be a valid boolean; got 1"),
    "temperature": (
        {"prompt": "a", "temperature": -1},
        "temperature",
        "temperature must be from 0 to 3e38; got -1",
    ),
    "top_p": ({"prompt": "a", "top_p": 0}, "top_p", "top_p must be above 0 and at most 1; got 0"),
    "top_k": (
        {"prompt": "a", "top_k": -1},
        "top_k",
        "top_k must be greater than or equal to 0; got -1",
    ),
    "penalty": (
        {"prompt": "a", "repetition_penalty": 0},
        "repetition_penalty",
        "repetition_penalty must be from 1e-37 to 3e38; got 0",
    ),
    "no tokens": ({"prompt": "a", "max_tokens": 0}, "max_tokens", "max_tokens must be above 0"),
    "window": (
        {"prompt": "a", "max_tokens": N_CTX},
        "max_tokens",
        f"max_tokens must be below n_ctx = {N_CTX}, to leave room for a prompt; got {N_CTX}",
    ),
    "logprobs": (
        {"prompt": "a", "logprobs": 6},
        "logprobs",
        "logprobs must be from 0 to 5; got 6. Change or leave it out.",
    ),
    "no answer": ({"prompt": "a", "n": 0}, "n", "n must be greater than or equal to 1; got 0"),
    "answers": (
        {"prompt": ["a"] * 5, "n": 13},
        "n",
        "n times the number of prompts must be at most 64; got 13 x 5. Send several requests.",
    ),
    "stop": (
        {"prompt": "a", "stop": ""},
        "stop",
        "stop must be a text of 1 to 256 characters, or at most 16 of them; got",
    ),
    "stops": ({"prompt": "a", "stop": ["a"] * 17}, "stop", "or at most 16 of them; got"),
    "stop number": ({"prompt": "a", "stop": [1]}, "stop", "or at most 16 of them; got [1]"),
    "best_of": (
        {"prompt": "a", "best_of": 3},
        "best_of",
        "best_of must be n = 1, since this server returns all that it writes; got 3",
    ),
    "echo": (
        {"prompt": "a", "echo": True, "logprobs": 0},
        "logprobs",
        "logprobs must be left out with echo",
    ),
    "options": (
        {"prompt": "a", "stream_options": {"include_usage": True}},
        "stream_options",
        "stream_options must come with stream",
    ),
    "obfuscation": (
        {"prompt": "a", "stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
        "stream_options.include_obfuscation must be false",
    ),
}
for name, value in {
    "suffix": "b",
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "logit_bias": {"5": 1.0},
}.items():
    WRONG[name] = (
        {"prompt": "a", name: value},
        name,
        f"{name} must be left out, since this server does not have it; got",
    )


@pytest.fixture(autouse=True)
def the_next_request_succeeds(server):
    yield
    status, _, answer = server.ask("POST", URL, GOOD)
    assert status == 200 and answer["usage"]["completion_tokens"] == 1
    server.wait_until(running=0, waiting=0)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_body(server, name):
    body, param, message = WRONG[name]
    status, _, answer = server.ask("POST", URL, body)
    assert status == 400
    error = answer["error"]
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert error["param"] == param
    assert len(error["message"]) < 400


def test_several_wrong_fields_are_told_at_once(server):
    _, _, answer = server.ask("POST", URL, {"n": "x", "echo": 1, "tpo_k": 2})
    for words in ("prompt must be given", "n must be", "echo must be", "Did you mean top_k?"):
        assert words in answer["error"]["message"]


def test_the_content_type_must_be_json(server):
    """A page of another site can send no such request."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        status, _, answer = server.ask("POST", URL, GOOD, Content_Type=kind)
        assert status == 415
        assert "Content-Type must be application/json; got" in answer["error"]["message"]
    given = {"Content_Type": "application/json; charset=utf-8"}
    assert server.ask("POST", URL, GOOD, **given)[0] == 200
    assert (
        "access-control-allow-origin" not in server.ask("POST", URL, GOOD, Origin="http://a.b")[1]
    )


def test_a_body_that_is_too_large(server):
    status, _, answer = server.ask("POST", URL, {"prompt": "a" * 1_000_000})
    assert status == 413
    assert answer["error"]["message"].startswith("body must be at most 1,000,000 bytes; got 1,000,")
    # Without a declared length, in pieces.
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        head = f"POST {URL} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(25):
            connection.sendall(b"c350\r\n" + b" " * 50_000 + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
    # One that is larger by far is not read.
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: 999000000\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_paths_and_methods_that_are_not_there(server):
    status, _, answer = server.ask("GET", "/v1/chat/completions")
    assert status == 404
    assert answer["error"]["message"].startswith("path must be one of this server's; got /v1/chat")
    status, headers, answer = server.ask("GET", URL)
    assert status == 405 and headers["Allow"] == "POST"
    assert f"method of {URL} must be POST; got GET. Use that one." in answer["error"]["message"]
    assert server.metric('serve_requests_total{route="other",status="404"}') >= 1


def test_a_client_that_goes_ends_its_text(server):
    """Whether it streams or waits, however many texts; long before they would be written."""
    answers = "serve_completion_tokens_total"
    before = server.metric(answers)
    for settings in ({"stream": True}, {"stream": False}, {"n": 9}):
        body = {"prompt": "a", "max_tokens": LONG} | settings
        with server.sent(body):
            server.wait_until(running=min(settings.get("n", 1), 3))
        began = time.monotonic()
        server.wait_until(running=0, waiting=0)
        assert time.monotonic() - began < 5
    assert server.metric(answers) == before
    gone = f'serve_requests_total{{route="{URL}",status="499"}}'
    assert server.metric(gone) >= 2


def test_a_client_that_goes_while_it_waits(server):
    with server.sent({"prompt": "a", "max_tokens": LONG, "n": 3, "stream": True}):
        server.wait_until(running=3)
        for stream in (True, False):
            with server.sent({"prompt": "b", "max_tokens": 5, "stream": stream}):
                server.wait_until(running=3, waiting=1)
            server.wait_until(running=3, waiting=0)


def test_a_client_that_goes_before_the_end_of_its_request(server):
    for path, body in ((URL, b'{"pro'), ("/complete", b"")):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: 99\r\n\r\n".encode() + body)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        assert re.match(rb"HTTP/1.1 400 ", connection.recv(100))


def test_wrong_requests_disturb_nobody(server):
    body = {"prompt": "an old man", "max_tokens": 200, "temperature": 0}
    expected = server.ask("POST", URL, body)[2]["choices"]
    with server.sent(body | {"stream": False}) as connection:
        for wrong, *_ in WRONG.values():
            assert server.ask("POST", URL, wrong)[0] == 400
        got = b""
        while b"usage" not in got:
            got += connection.recv(100_000)
    assert expected[0]["text"] in got.decode()


def test_the_name_of_the_model(server):
    for name in (NAME, None):
        assert server.ask("POST", URL, GOOD | {"model": name})[0] == 200
    status, _, answer = server.ask("POST", URL, GOOD | {"model": 5})
    assert status == 400 and "model must be a valid string; got 5" in answer["error"]["message"]
