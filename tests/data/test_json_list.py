"""JSON lists are parsed as json.loads does, however they are cut, and in little memory."""

import itertools
import json
import tracemalloc

import pytest

from data.json_list import read_json_list

ENTRIES = [
    *("", "plain", 'quote " and \\ backslash', "ü€😀\u2028", "line\nend\t"),
    *({"text": "a", "meta": {"n": [1.5, -2e-7, None, True, False]}}, {}, [], [["]", "[", ","]]),
    *(12, -0.25, 1.5e30, None, True),
]
SPELLINGS = {
    "short": json.dumps(ENTRIES, separators=(",", ":")),
    "spaced": json.dumps(ENTRIES, indent=2),
    "not escaped": json.dumps(ENTRIES, ensure_ascii=False),
    "with a mark": "\ufeff \n" + json.dumps(ENTRIES) + " \r\n\t",
    "words": "[NaN, Infinity, -Infinity]",
    "empty": "[]",
    "empty with spaces": " [ \n ] ",
}


def blocks(content, size):
    return (content[i : i + size] for i in range(0, len(content), size))


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_list_is_that_of_json_however_it_is_cut(name):
    content = SPELLINGS[name].encode()
    expected = repr(json.loads(content.decode("utf-8-sig")))  # NaN is not equal to itself
    for size in (*range(1, 40), len(content)):
        assert repr(list(read_json_list(blocks(content, size)))) == expected, size


WRONG = {
    "{}": (0, "no JSON list"),
    "": (0, "no JSON list"),
    "[": (0, "Expecting value"),
    '["a", ]': (1, "Expecting value"),
    '["a" "b"]': (1, "Expecting ',' delimiter"),
    '["a", "b"': (2, "it ends within the list"),
    '["a", "b': (1, "Unterminated string"),
    '["a", {"text": tru}, "c"]': (1, "Expecting value"),
    '["a", "\\x", "c"]': (1, "Invalid \\escape"),
    '["a"] "b"': (1, "Extra data behind the list"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_comes_before_damage_is_read(text):
    whole, message = WRONG[text]
    for size in (1, 3, 100):
        entries = read_json_list(blocks(text.encode(), size))
        assert list(itertools.islice(entries, whole)) == ["a", "b"][:whole]
        with pytest.raises(ValueError, match=message.replace("\\", "\\\\")):
            next(entries)


def test_wrong_utf_8_is_an_error():
    with pytest.raises(ValueError, match="utf-8"):
        list(read_json_list([b'["caf\xe9"]']))


def test_memory_is_that_of_an_entry_and_not_of_the_list():
    def content():
        yield b"[1"
        for _ in range(2000):
            yield b',{"text": "' + b"word " * 2000 + b'"}'
        yield b"]"

    tracemalloc.start()
    entries = sum(1 for _ in read_json_list(content()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert entries == 2001
    assert peak < 200_000  # of 20 MB


def test_damage_is_not_searched_to_the_end_of_the_list():
    def content():
        yield b'["a", {"text": wrong}, '
        for _ in range(50):
            yield b'"word", ' * 100
        raise AssertionError("read on")

    entries = read_json_list(content())
    assert next(entries) == "a"
    with pytest.raises(ValueError, match="Expecting value"):
        next(entries)


def test_a_large_entry_takes_time_in_proportion_to_its_size(monkeypatch):
    tried = []
    plain = json.JSONDecoder.raw_decode

    def recording(self, text, index=0):
        tried.append(len(text) - index)
        return plain(self, text, index)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", recording)
    size = 1_000_000
    [text] = read_json_list(itertools.chain([b'["'], [b"x" * 1000] * 1000, [b'"]']))
    assert len(text) == size
    assert sum(tried) < 5 * size
