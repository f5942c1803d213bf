"""Checkpoints of other programs, to and from this project's."""
