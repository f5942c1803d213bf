"""What docs/tracking.md says is true of the code."""

import re
import shlex

import pytest

from scripts import list_runs, plot_runs
from tracking import output
from tracking.command_line import build_experiment_parser, parse_experiment
from tracking.metrics import POINT_LIMIT


@pytest.fixture(scope="module")
def page(repo_root):
    return (repo_root / "docs/tracking.md").read_text(encoding="utf-8")


def commands(page, program):
    found = re.findall(rf"^python {re.escape(program)} (.*)$", page, re.MULTILINE)
    assert found, program
    return [shlex.split(command) for command in found]


def test_commands_are_accepted(page):
    for words in commands(page, "run_experiment.py"):
        parse_experiment(words)
    for words in commands(page, "scripts/list_runs.py"):
        list_runs.build_parser().parse_args(words)
    for words in commands(page, "scripts/plot_runs.py"):
        plot_runs.build_parser().parse_args(words)


def test_flags_exist(page):
    known = build_experiment_parser()._option_string_actions.keys() | {"--sort", "--columns"}
    assert set(re.findall(r"`(--\w+)", page)) <= known


def test_links_lead_somewhere(page, repo_root):
    for link in re.findall(r"\]\(([^)#]+)", page):
        assert (repo_root / "docs" / link).exists(), link


def test_numbers_are_those_of_the_code(page):
    assert f"Beyond {POINT_LIMIT:,} points" in page
    kept = (output.HEAD_BYTES // 1000, output.TAIL_BYTES // 1000)
    assert "the first {} kB and the last {} kB".format(*kept) in page
