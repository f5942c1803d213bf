"""Prompts of files and of standard input."""

import io

import pytest

from serving.prompts import DEFAULT_PROMPT, read_prompt


@pytest.fixture(params=["file", "standard input"])
def read(request, tmp_path):
    """Reads bytes as a prompt, in both ways; gives the name under which errors speak of it."""

    def read_bytes(content):
        if request.param == "standard input":
            return read_prompt("-", io.BytesIO(content))
        file = tmp_path / "prompt.txt"
        file.write_bytes(content)
        return read_prompt(str(file))

    name = "standard input" if request.param == "standard input" else str(tmp_path / "prompt.txt")
    return read_bytes, name


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ("Once", "Once"),
        ("Once\n", "Once"),
        ("Once\n\n", "Once\n"),
        ("Once\r\nupon\r\n", "Once\nupon"),
        ("  Grüße 雪\nzwei", "  Grüße 雪\nzwei"),
        ("", ""),
    ],
)
def test_a_prompt_is_the_text_without_its_last_newline(read, content, prompt):
    assert read[0](content.encode()) == prompt


def test_what_is_no_utf_8_is_refused_with_its_position(read):
    read_bytes, name = read
    with pytest.raises(ValueError) as caught:
        read_bytes(b"Once \xff")
    assert str(caught.value) == (
        f"--prompt must be a readable UTF-8 text file; got {name} ('utf-8' codec can't decode "
        "byte 0xff in position 5: invalid start byte). Name a file, or - for standard input."
    )


def test_files_that_cannot_be_read(tmp_path):
    missing = str(tmp_path / "missing.txt")
    with pytest.raises(ValueError, match=r"UTF-8 text file; got .*missing\.txt \(.*No such file"):
        read_prompt(missing)
    with pytest.raises(ValueError, match="readable UTF-8 text file"):
        read_prompt(str(tmp_path))


def test_closed_standard_input():
    with pytest.raises(ValueError, match=r"got standard input \(it is closed\)\. Name a file"):
        read_prompt("-", None)


def test_the_built_in_prompt():
    assert read_prompt(None) == DEFAULT_PROMPT
    assert len(DEFAULT_PROMPT.split()) > 20
