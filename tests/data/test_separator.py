"""What `--separator` means: ids, or a text to encode."""

import pytest

from data.separator import parse_separator
from data.tokenizers import load_tokenizer


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("[0]", [0]),
        ("5, 6", [5, 6]),
        ("[7 8]", [7, 8]),
        ("50256", [50256]),
        (None, [50256]),
        ("\n", [198]),
        ("[PAD]", [58, 47, 2885, 60]),
        ('{"a": 1}', load_tokenizer().encode('{"a": 1}')),
    ],
)
def test_separator(value, ids):
    assert parse_separator(value, load_tokenizer()).tolist() == ids


@pytest.mark.parametrize("value", ["[-1]", "-1", "0, -1", "[50257]", ""])
def test_ids_out_of_range(value):
    with pytest.raises(ValueError) as caught:
        parse_separator(value, load_tokenizer())
    assert str(caught.value) == (
        f"--separator must be one or more ids from 0 to 50256, or a text; got {value!r}. Leave it "
        "out to use the tokenizer's end of text."
    )


@pytest.mark.parametrize("value", ["[]", "[0.5]", '["a"]', "[[0], []]", "[true]", "[1, null]"])
def test_lists_of_something_else_than_ids(value):
    with pytest.raises(ValueError) as caught:
        parse_separator(value, load_tokenizer())
    assert str(caught.value) == (
        f"--separator in brackets must list token ids, as in '[0]'; got {value!r}. Write whole "
        "numbers, or a text that is no JSON list."
    )


def test_a_separator_that_is_no_text_is_refused():
    with pytest.raises(ValueError, match=r"--separator must be .* or a text; got '\\udcff'"):
        parse_separator("\udcff", load_tokenizer())
