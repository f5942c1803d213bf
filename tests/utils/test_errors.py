import pytest

from utils.errors import reason

FAILED_NODE = """Graph execution error:

Detected at node 'IteratorGetNext' defined at (most recent call last):
Node: 'IteratorGetNext'
Detected at node 'IteratorGetNext' defined at (most recent call last):
Node: 'IteratorGetNext'
corrupted record at 188
\t [[{{node IteratorGetNext}}]]"""

ON_TWO_HOSTS = """Graph execution error:

=====================
INVALID_ARGUMENT: From /job:worker/replica:0/task:1:
assertion failed: [ids must lie in [0, 5); got 7]
\t [[{{node Assert}}]]
INVALID_ARGUMENT: From /job:worker/replica:0/task:0:
assertion failed: [ids must lie in [0, 5); got 8]
=====================
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (ON_TWO_HOSTS, "ids must lie in [0, 5); got 7"),
        ("Node: 'Read'\nFrom /job:worker/replica:0/task:1:\na; No such file", "a; No such file"),
        (FAILED_NODE, "corrupted record at 188"),
        ("loss must be finite; got nan.\nmore", "loss must be finite; got nan."),
        (
            "Graph execution error:\n\nassertion failed: [ids in [0, 5)]\n\t [[node]]",
            "ids in [0, 5)",
        ),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_says_what_is_wrong(text, line):
    assert reason(RuntimeError(text)) == line
