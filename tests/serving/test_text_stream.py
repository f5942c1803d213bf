"""Text of tokens as they come: characters, stop strings, and what is held back for them."""

import random
import re

import pytest

from data.tokenizers import load_tokenizer
from serving.requests import WrittenToken
from serving.text_stream import StoppingText, beginning_of_stop, end_of_first


@pytest.fixture(scope="module")
def gpt2():
    return load_tokenizer()


class Pieces:
    """A tokenizer whose tokens are the given pieces of text or bytes."""

    is_byte_level = True

    def __init__(self, pieces):
        self.token_bytes = {
            number: piece if isinstance(piece, bytes) else piece.encode()
            for number, piece in enumerate(pieces)
        }


def run(pieces, stops):
    """Pushes all pieces: (what each step showed, text, numbers of the tokens, stopped)."""
    watch = StoppingText(Pieces(pieces), [], stops)
    steps, tokens = [], []
    for number in range(len(pieces)):
        settled = watch.push(WrittenToken(number, None))
        steps.append(settled.text)
        tokens += [written.token for written in settled.tokens]
        if settled.stopped:
            return steps, "".join(steps), tokens, True
    settled = watch.finish()
    tokens += [written.token for written in settled.tokens]
    return steps, "".join(steps) + settled.text, tokens, settled.stopped


def test_characters_are_shown_whole(gpt2):
    text = "Grüße, 雪 and 👩‍👩‍👧, done"
    ids = gpt2.encode(text)
    assert len(ids) > len(text) / 2
    watch = StoppingText(gpt2, [])
    shown = [watch.push(WrittenToken(token, None)) for token in ids]
    assert "".join(piece.text for piece in shown) == text
    assert "\ufffd" not in "".join(piece.text for piece in shown)
    assert [p for p in shown if not p.text] == [p for p in shown if not p.tokens] != []  # they wait
    assert [w.token for piece in shown for w in piece.tokens] == ids
    assert watch.finish() == ("", [], False)


def test_half_a_character_at_the_end_is_shown_as_such():
    assert run([b"a", b"\xe9\x9b"], []) == (["a", ""], "a\ufffd", [0, 1], False)


def test_the_prompt_is_context_and_not_text(tmp_path):
    """Of a tokenizer that joins words by spaces, the first new one needs a space."""
    from tokenizers import Tokenizer, decoders, models

    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "one": 1, "two": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "words.json"))
    tokenizer = load_tokenizer(str(tmp_path / "words.json"), is_pretrained=False)
    for prompt, text in (([1], " two one"), ([], "two one")):
        watch = StoppingText(tokenizer, prompt)
        shown = [watch.push(WrittenToken(token, None)).text for token in (2, 1)]
        assert "".join(shown) == text


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "tokens"),
    [
        (["ab", "cd"], ["d"], "abc", [0, 1]),  # within a token, of which a part is left
        (["ab", "cd"], ["cd"], "ab", [0]),
        (["ab", "c", "d", "ef"], ["bcde"], "a", [0]),  # over four tokens
        (["a", "\n", "\n", "b"], ["\n\n"], "a", [0]),
        (["x", "雪"[:1], "y"], ["雪y"], "x", [0]),
        ([b"x", b"\xe9", b"\x9b\xaa", b"y"], ["雪"], "x", [0]),  # over bytes of a character
        (["ab"], ["ab"], "", []),
        (["abc", "x"], ["x", "bc"], "a", [0]),  # the first to be complete
        (["abcd"], ["bcd", "c"], "ab", [0]),
        (["abc"], ["c", "bc"], "a", [0]),  # together: the longer one
        (["aa", "aab"], ["aab"], "aa", [0]),
        (["aab"], ["ab", "aa"], "", []),
    ],
)
def test_the_text_ends_before_a_stop_string(pieces, stops, text, tokens):
    assert run(pieces, stops)[1:] == (text, tokens, True)


def test_nothing_is_taken_back_and_nothing_lost():
    steps, text, tokens, stopped = run(["a\n", "\n", "b", "c\n"], ["\n\nQ", "c\nd"])
    assert steps == ["a", "", "\n\nb", ""]
    assert (text, tokens, stopped) == ("a\n\nbc\n", [0, 1, 2, 3], False)


def test_tokens_are_told_when_their_text_is():
    watch = StoppingText(Pieces(["xa", "b", "c"]), [], ["abX"])
    told = [watch.push(WrittenToken(number, None)) for number in range(3)]
    assert [(piece.text, [w.token for w in piece.tokens]) for piece in told] == [
        ("x", []),
        ("", []),
        ("abc", [0, 1, 2]),
    ]


def test_random_texts_against_a_search_in_the_whole_text():
    """Cut into tokens at random, the text is the one that a reader of characters would keep."""
    rng = random.Random(3)
    stopped_runs = 0
    for _ in range(2000):
        text = "".join(rng.choices("abé", k=rng.randint(1, 12)))
        stops = ["".join(rng.choices("abé", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        whole = text.encode()
        cuts = sorted(rng.sample(range(1, len(whole)), min(len(whole) - 1, rng.randint(0, 6))))
        edges = [0, *cuts, len(whole)]
        pieces = [whole[left:right] for left, right in zip(edges, edges[1:])]
        _, got, tokens, stopped = run(pieces, stops)
        ends = [
            (match.start() + len(stop), match.start())
            for stop in stops
            for match in re.finditer(f"(?={re.escape(stop)})", text)
        ]
        expected = text[: min(ends)[1]] if ends else text
        assert (got, stopped) == (expected, bool(ends)), (pieces, stops)
        assert tokens == list(range(len(tokens)))
        assert len(b"".join(pieces[: len(tokens)])) >= len(expected.encode())
        stopped_runs += stopped
    assert 200 < stopped_runs < 1900


def test_without_a_tokenizer_there_is_no_text():
    watch = StoppingText(None, [1, 2])
    assert watch.push(WrittenToken(7, None)) == ("", [WrittenToken(7, None)], False)
    assert watch.finish() == ("", [], False)


def test_searches():
    assert end_of_first("abcabc", ["ca", "bc"]) == 1
    assert end_of_first("abc", []) is None
    assert beginning_of_stop("xab", ["abc", "b"]) == 2
    assert beginning_of_stop("ab", ["abc"]) == 2
    assert beginning_of_stop("xyz", ["abc"]) == 0
