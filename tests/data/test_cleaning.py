"""Optional repairs of text."""

import pytest

from data.cleaning import detokenize_wikitext, fix_text


def test_mojibake_is_repaired():
    assert fix_text("schÃ¶n â€” naÃ¯ve") == "schön — naïve"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (" It 's 1 @,@ 000 @.@ 5 km , or so .", "It's 1,000.5 km, or so."),
        (
            "a well @-@ known ( and old ) song ; he did n't",
            "a well-known (and old) song; he didn't",
        ),
        (' He said " yes , sir " and " no " .', 'He said "yes, sir" and "no".'),
        (" = Title = \n \n = = Part two = = \n Text .", "= Title =\n\n== Part two ==\nText."),
        ("the dogs ' tails", "the dogs' tails"),
        ("x = y + 1", "x = y + 1"),
        ("ordinary text, 'quoted' and \"double\".", "ordinary text, 'quoted' and \"double\"."),
    ],
)
def test_wikitext_becomes_running_text(raw, text):
    assert detokenize_wikitext(raw) == text
