"""Optional repairs of a text before it is encoded; none is on unless asked for."""

from __future__ import annotations

import re

# WikiText writes tokens apart; each pair undoes one of its habits, in this order.
# Source: the format notes of the WikiText data sets (Merity et al. 2016, section 4.3).
_WIKITEXT_RULES = tuple(
    (re.compile(pattern, re.MULTILINE), replacement)
    for pattern, replacement in (
        (r" ?@([-,.])@ ?", r"\1"),  # 1 @,@ 000 -> 1,000
        (r"\b(\w+) n't\b", r"\1n't"),
        (r" '(s|re|ve|ll|d|m)\b", r"'\1"),  # it 's -> it's
        (r"(\w)s ' ", r"\1s' "),  # the dogs ' tails
        (r" +([.,;:!?%)\]])", r"\1"),
        (r"([(\[$]) +", r"\1"),
        (r'" +([^"\n]*?) +"', r'"\1"'),  # " quoted " -> "quoted"
        (r"^ | +$", ""),
    )
)
_HEADING = re.compile(r"^ ?((?:= )+)(\S.*?)((?: =)+) ?$", re.MULTILINE)


def fix_text(text: str) -> str:
    """Repairs text that was decoded wrongly (mojibake) with ftfy.

    Args:
        text: any text.

    Returns:
        The repaired text.

    Raises:
        ValueError: ftfy is not installed.
    """
    try:
        import ftfy
    except ImportError as error:
        raise ValueError(
            "ftfy must be installed to repair text; got no such package. "
            "Install it with: pip install -r requirements.txt"
        ) from error
    return ftfy.fix_text(text, normalization="NFKC")


def detokenize_wikitext(text: str) -> str:
    """Puts WikiText's separated tokens back together as running text.

    Args:
        text: text in the form of the WikiText data sets.

    Returns:
        The text as it would be written.
    """
    text = _HEADING.sub(_heading, text)
    for pattern, replacement in _WIKITEXT_RULES:
        text = pattern.sub(replacement, text)
    return text


def _heading(match: re.Match[str]) -> str:
    opening, title, closing = (group.strip() for group in match.groups())
    return f"{opening.replace(' ', '')} {title} {closing.replace(' ', '')}"
