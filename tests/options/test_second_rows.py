"""Every pair of model and training options works together: the second third of the rows."""

from tests.options.rows import SECOND, OptionTests


class TestSecondRows(OptionTests):
    rows = SECOND
