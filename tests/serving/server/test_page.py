"""The page, in a browser."""

import math
import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import chromium
from tests.serving.server.running import LONG, N_CTX, NAME, STEP

PROMPT = "the night train was standing at a little café and"


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def page(browser, server):
    """The page when it knows the model; nothing on it fails or leaves this machine."""
    opened = browser.new_page(viewport={"width": 1100, "height": 760})
    wrong, places = [], set()
    opened.on("console", lambda message: _note(message, wrong))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", lambda request: places.add(request.url.split("/v1")[0].rstrip("/")))
    opened.goto(server.url)
    expect(opened.locator("#name")).to_have_text(NAME)
    yield opened
    opened.close()
    assert places == {server.url} and wrong == []


def _note(message, wrong):
    """Keeps errors; the browser writes one for each answer that is none, such as 400."""
    if message.type == "error" and "status of 400" not in message.text:
        wrong.append(message.text)


def slide(page, **values):
    for name, value in values.items():
        page.locator(f"#{name}").fill(str(value))


def write(page, **values) -> str:
    """Writes to the end; returns what it says then."""
    slide(page, **values)
    page.locator("#write").click()
    expect(page.locator("#write")).to_be_enabled(timeout=20_000)
    return page.locator("#state").inner_text()


def written(page) -> list[str]:
    return page.locator("#text .token").evaluate_all("all => all.map(one => one.textContent)")


def test_it_knows_the_model_and_shows_the_settings(page):
    expect(page.locator("#about")).to_have_text(f"step {STEP}, window of {N_CTX} tokens")
    slide(page, temperature=1.25, top_k=7)
    shown = page.locator("label:has(#temperature) output, label:has(#top_k) output")
    assert shown.all_inner_texts() == ["1.25", "7"]


def test_the_text_is_that_of_the_interface_and_its_tokens_have_probabilities(page, server):
    page.locator("#prompt").fill(PROMPT)
    page.locator("#seed").fill("3")
    said = write(page, max_tokens=40, temperature=0.9, top_p=0.9, repetition_penalty=1.1)
    fields = {"prompt": PROMPT, "seed": 3, "max_tokens": 40, "temperature": 0.9, "top_p": 0.9}
    fields |= {"repetition_penalty": 1.1, "top_k": 0, "logprobs": 5}
    [choice] = server.ask("POST", "/v1/completions", fields)[2]["choices"]
    assert "".join(written(page)) == choice["text"]
    assert page.locator("#text").text_content() == PROMPT + choice["text"]
    assert re.fullmatch(r"40 tokens in \S+ s, \S+ a second: as many as were asked for", said)
    number = 11
    scores = choice["logprobs"]
    page.locator("#text .token").nth(number).hover()
    card = page.locator("#card")
    expect(card).to_be_visible()
    chance = 100 * math.exp(scores["token_logprobs"][number])
    assert f"{chance:.{2 if chance < 10 else 1}f} %" in card.locator("div").inner_text()
    assert card.locator("tr").count() == len(scores["top_logprobs"][number])
    assert card.locator(".drawn").count() == 1
    if "PAGE_SCREENSHOT" in os.environ:
        page.screenshot(path=Path(os.environ["PAGE_SCREENSHOT"]))
    page.locator("#state").hover()
    expect(card).to_be_hidden()


def test_a_text_grows_and_can_be_stopped_and_gone_on_with(page, server):
    page.locator("#prompt").fill("a")
    slide(page, max_tokens=LONG)
    page.locator("#prompt").press("Control+Enter")
    page.locator("#text .token").nth(20).wait_for()
    expect(page.locator("#state")).to_have_text("writing …")
    expect(page.locator("#write")).to_be_disabled()
    page.locator("#stop").click()
    expect(page.locator("#state")).to_have_text("stopped")
    server.wait_until(running=0, waiting=0)
    count = len(written(page))
    assert 20 < count < LONG
    text = "".join(written(page))
    page.locator("#go_on").click()
    assert page.locator("#prompt").input_value() == "a" + text


def test_what_the_server_refuses_is_shown(page):
    page.locator("#stop_text").fill("x" * 300)
    said = write(page, max_tokens=5)
    assert said.startswith("stop must be a text of 1 to 256 characters")
    expect(page.locator("#state")).to_have_class("wrong")
    page.locator("#stop_text").fill("")
    page.locator("#prompt").fill("a" * (N_CTX + 10))
    said = write(page, max_tokens=5)
    assert f"prompt 1 has {N_CTX + 10} tokens; its last {N_CTX - 5} are used" in said


@pytest.mark.parametrize("seed", ["abc", "-1", "1.5", "9007199254740993"])
def test_a_seed_that_would_not_be_that_seed_is_not_sent(page, seed):
    page.locator("#seed").fill(seed)
    said = write(page)
    assert said.startswith("Seed must be a whole number up to 9007199254740991; got " + seed)
    assert written(page) == []


def test_text_of_the_model_is_no_markup(page):
    """It is shown letter by letter, whatever it is."""
    page.locator("#prompt").fill("<img src=x onerror=alert(1)><b>")
    write(page, max_tokens=3)
    assert page.locator("#text img, #text b").count() == 0
    assert page.locator("#text .given").text_content() == "<img src=x onerror=alert(1)><b>"


def test_it_asks_for_nothing_from_elsewhere(server):
    _, headers, text = server.ask("GET", "/")
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert re.findall(r"(?:https?:)?//[\w.]+\.\w+", text) == []
