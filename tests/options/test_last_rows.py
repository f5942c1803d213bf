"""Every pair of model and training options works together: the last third of the rows."""

from tests.options.rows import LAST, OptionTests


class TestLastRows(OptionTests):
    rows = LAST
