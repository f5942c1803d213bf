"""Key, queue and limits of a server that has narrow ones, and its end."""

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from playwright.sync_api import expect

from tests.browser import chromium
from tests.serving.server.running import LONG, NAME, Server

URL = "/v1/completions"
KEY = "a-long-secret"
ALLOWED = {"Authorization": f"Bearer {KEY}"}
WAITING = 9
SECONDS = 5  # less than ten texts of the whole window take, one after another


class KeyedServer(Server):
    """Sends the key, unless another header is given."""

    def ask(self, method, path, body=None, **headers):
        return super().ask(method, path, body, **(ALLOWED | headers))


@pytest.fixture(scope="module")
def server(model_config):
    file = model_config.parent / "key"
    file.write_text(f"{KEY}\n")
    flags = {"--api_key_file": file, "--texts": 1, "--most_waiting": WAITING, "--most_bytes": 500}
    flags |= {"--most_seconds": SECONDS}
    running = KeyedServer(model_config, *(word for pair in flags.items() for word in pair))
    yield running
    running.stop()


def long_text(**settings):
    return {"prompt": "a", "max_tokens": LONG, "n": WAITING + 1} | settings


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer a-long-secre", f"Basic {KEY}", f"Bearer {KEY}x"]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", URL),
        ("POST", "/complete"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/x"),
    ],
)
def test_nothing_is_told_without_the_key(server, method, path, given):
    body = {"prompt": "a"} if method == "POST" else None
    status, headers, answer = server.ask(method, path, body, Authorization=given)
    assert status == 401
    assert headers["WWW-Authenticate"] == "Bearer"
    assert "Authorization must be Bearer and this server's key; got" in answer["error"]["message"]


def test_with_the_key(server):
    for path in ("/", "/healthz"):
        assert server.ask("GET", path, Authorization="")[0] == 200
    assert server.ask("HEAD", "/healthz", Authorization="")[0] == 200  # of load balancers
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        assert client.completions.create(model=NAME, prompt="a", max_tokens=1).choices
    other = openai.OpenAI(base_url=f"{server.url}/v1", api_key="b", max_retries=0)
    with other, pytest.raises(openai.AuthenticationError):
        other.models.list()


def test_the_page_has_a_field_for_the_key(server):
    with chromium() as browser:
        page = browser.new_page()
        page.goto(server.url)
        expect(page.locator("#state")).to_contain_text("Authorization must be Bearer")
        page.locator("#key").fill(KEY)
        page.locator("#key").press("Tab")
        expect(page.locator("#name")).to_have_text(NAME)
        page.locator("#max_tokens").fill("3")
        page.locator("#write").click()
        expect(page.locator("#state")).to_contain_text("3 tokens in ")


def test_a_full_queue(server):
    with contextlib.ExitStack() as clients:
        for number, n in enumerate((WAITING, 1)):
            clients.enter_context(server.sent(long_text(n=n), **ALLOWED))
            server.wait_until(running=1, waiting=WAITING - 1 + number)
        for body in ({"prompt": "b"}, {"prompt": "b", "stream": True}):
            status, headers, answer = server.ask("POST", URL, body)
            assert (status, headers["Retry-After"]) == (503, "1")
            assert (
                "the engine's queue must have room; got 9 of 9 places" in answer["error"]["message"]
            )
            assert answer["error"]["code"] == "overloaded"
        assert server.ask("POST", "/complete", {"context": "b"})[0] == 503
        assert server.ask("GET", "/healthz")[0] == 200
    assert server.ask("POST", URL, {"prompt": "b"})[0] == 200
    status, _, answer = server.ask("POST", URL, {"prompt": ["a", "b"], "n": 5})
    assert status == 400  # there is never room for it
    assert "n times the number of prompts must be at most 9" in answer["error"]["message"]


def test_many_more_clients_than_places(server):
    """Each is answered whole or told to come again, whatever the others meet."""

    def ask(number):
        body = {"prompt": "a" * (1 + number % 7), "max_tokens": 1 + number % 9}
        body["stream"] = bool(number % 2)
        status, headers, answer = server.ask("POST", URL, body)
        if status == 200:
            return "usage" in answer if number % 2 == 0 else answer.endswith("data: [DONE]\n\n")
        return status == 503 and headers["Retry-After"] == "1" and None

    with ThreadPoolExecutor(200) as pool:
        results = list(pool.map(ask, range(200)))
    assert results.count(True) > WAITING and results.count(None) > 0
    assert False not in results
    server.wait_until(running=0, waiting=0)
    assert server.ask("POST", URL, {"prompt": "b"})[0] == 200


def test_a_text_that_takes_too_long(server):
    body = long_text(n=WAITING)
    began = time.monotonic()
    status, _, answer = server.ask("POST", URL, body)
    assert status == 504
    assert f"an answer must be written within {SECONDS} s; got a part" in answer["error"]["message"]
    assert SECONDS <= time.monotonic() - began < SECONDS + 10
    status, _, text = server.ask("POST", URL, body | {"stream": True})
    assert status == 200
    *parts, last, rest = text.split("\n\n")
    assert len(parts) > 5 and rest == ""
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
    server.wait_until(running=0, waiting=0)


def test_a_large_body(server):
    status, _, answer = server.ask("POST", URL, {"prompt": "a" * 490})
    assert status == 413
    assert "body must be at most 500 bytes; got 504" in answer["error"]["message"]


def test_the_end_finishes_what_runs(server):
    """What is being written and what waits is finished; nothing new is taken."""
    results = {}

    def ask(name, **settings):
        results[name] = server.ask("POST", URL, {"prompt": "a", "max_tokens": 150} | settings)

    settings = {"first": {}, "stream": {"stream": True}, "waits": {"max_tokens": 3}}
    threads = [threading.Thread(target=ask, args=[n], kwargs=s) for n, s in settings.items()]
    for number, thread in enumerate(threads):
        thread.start()
        server.wait_until(running=1, waiting=number)
    server.process.terminate()
    said = ""
    while "finishing what runs" not in said:
        said += server.process.stdout.readline()
    with pytest.raises(OSError):
        for _ in range(20):
            server.ask("GET", "/healthz")
            time.sleep(0.05)
    for thread in threads:
        thread.join(60)
    assert results["first"][2]["usage"]["completion_tokens"] == 150
    assert results["waits"][2]["usage"]["completion_tokens"] == 3
    text = results["stream"][2]
    assert text.endswith("data: [DONE]\n\n") and text.count("data: ") > 120
    said += server.process.communicate(timeout=30)[0]
    assert server.process.returncode == 0
    assert said.rstrip().endswith("everything is finished") and "Traceback" not in said
    assert KEY not in said
