"""The requests of GPT-J's servers."""

import pytest

from tests.serving.server.running import N_CTX


def completion(server, **fields) -> str:
    status, _, answer = server.ask("POST", "/complete", fields)
    assert status == 200 and answer.keys() == {"completion"}
    return answer["completion"]


def openai_text(server, **fields) -> str:
    return server.ask("POST", "/v1/completions", fields)[2]["choices"][0]["text"]


def test_complete(server):
    """As its clients send it: three fields, 256 new tokens."""
    text = completion(server, context="the night", top_p=0.9, temp=0)
    same = openai_text(server, prompt="the night", max_tokens=256, temperature=0)
    assert text == same
    fields = {"context": "the night", "temp": 0.7, "top_p": 0.8, "top_k": 9, "seed": 5}
    text = completion(server, **fields, length=40, repetition_penalty=1.2, stop="q")
    assert text == openai_text(
        server,
        prompt="the night",
        temperature=0.7,
        top_p=0.8,
        top_k=9,
        seed=5,
        max_tokens=40,
        repetition_penalty=1.2,
        stop="q",
    )
    assert completion(server, context="", length=3)


def test_a_context_longer_than_the_window(server):
    fields = {"context": "b" * 2000, "temp": 0, "length": 4}
    status, _, answer = server.ask("POST", "/complete", fields)
    assert status == 200
    assert answer["warnings"] == [f"prompt 1 has 2000 tokens; its last {N_CTX - 4} are used"]
    assert answer["completion"] == completion(server, context="b" * (N_CTX - 4), temp=0, length=4)


@pytest.mark.parametrize("path", ["/complete", "/model/predict"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_p": 1.0}, "context must be given; got none. Add it."),
        ({"context": "\ud800"}, "context must be a text of Unicode characters; got"),
        ({"context": ["a"]}, 'context must be a valid string; got ["a"]'),
        ({"context": "a", "temp": -1}, "temp must be from 0 to 3e38; got -1"),
        ({"context": "a", "length": N_CTX}, f"length must be below n_ctx = {N_CTX}"),
        ({"context": "a", "prompt": "b"}, "prompt must be a field of this request"),
    ],
)
def test_wrong_fields(server, path, fields, message):
    status, _, answer = server.ask("POST", path, fields)
    assert status == 400
    assert message in answer["error"]["message"]


def test_questions_and_answers(server):
    fields = {"context": "the night", "temp": 0, "length": 7}
    qids = [server.ask("POST", "/model/predict", fields)[2]["qid"] for _ in "ab"]
    assert len(set(qids)) == 2
    for qid in reversed(qids):
        status, _, answer = server.ask("POST", "/model/get_prediction", {"qid": qid})
        assert status == 200 and answer.keys() == {"context", "completion", "time"}
        assert answer["context"] == "the night" and answer["time"] > 0
        assert answer["completion"] == completion(server, **fields)
    status, _, answer = server.ask("POST", "/model/get_prediction", {"qid": qids[0]})
    assert status == 404  # it was fetched
    message = f"qid must be of a question whose answer has not been fetched; got {qids[0]}"
    assert message in answer["error"]["message"]
    assert server.ask("POST", "/model/get_prediction", {"qid": "1"})[0] == 400


def test_answers_that_nobody_fetches_give_way(server):
    fields = {"context": "a", "length": 1}
    first = server.ask("POST", "/model/predict", fields)[2]["qid"]
    server.wait_until(running=0, waiting=0)
    qids = []
    for _ in range(64):
        status, _, answer = server.ask("POST", "/model/predict", fields)
        assert status == 200
        qids.append(answer["qid"])
        server.wait_until(running=0, waiting=0)
    assert server.ask("POST", "/model/get_prediction", {"qid": first})[0] == 404
    assert server.ask("POST", "/model/get_prediction", {"qid": qids[0]})[0] == 200
