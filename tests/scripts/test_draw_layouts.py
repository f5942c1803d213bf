"""The pictures of docs/layouts.md."""

import re

import pytest

from scripts.draw_layouts import FOLDER, LAYOUTS, picture


@pytest.mark.parametrize("name", LAYOUTS)
def test_pictures_are_fresh(name):
    written = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert written == picture(*LAYOUTS[name]), "run python scripts/draw_layouts.py"


def test_a_piece_names_the_processors_that_hold_it():
    text = picture("x:2,y:2", "batch:x,embd:y")
    stream = text.partition("residual stream")[2].partition("query weights")[0]
    assert re.findall(r">([\d ]+)<", stream) == ["0", "1", "2", "3"]
    weights = text.partition("query weights")[2].partition("attention scores")[0]
    assert re.findall(r">([\d ]+)<", weights) == ["0 2", "1 3"]


def test_the_page_shows_every_picture(repo_root):
    page = (repo_root / "docs" / "layouts.md").read_text(encoding="utf-8")
    assert re.findall(r"pictures/(\w+)\.svg", page) == list(LAYOUTS)
