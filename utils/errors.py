"""What an error of TensorFlow says, without what surrounds it."""

from __future__ import annotations


def reason(error: Exception) -> str:
    """The one line of an error that says what is wrong.

    TensorFlow puts a header, the stack of the failed node and its name above that line.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if line != "Graph execution error:"]
    nodes = [number for number, line in enumerate(lines) if line.startswith("Node: ")]
    lines = lines[nodes[-1] + 1 :] if nodes else lines
    return lines[0] if lines else type(error).__name__
