"""Every pair of model and training options works together: the first rows that show it."""

import itertools

from tests.options.rows import FACTORS, FIRST, ROWS, OptionTests


def test_the_rows_hold_every_pair():
    for first, second in itertools.combinations(range(len(FACTORS)), 2):
        levels = [range(len(list(FACTORS.values())[number])) for number in (first, second)]
        wanted = set(itertools.product(*levels))
        assert {(row[first], row[second]) for row in ROWS} == wanted


class TestFirstRows(OptionTests):
    rows = FIRST
