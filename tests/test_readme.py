"""What the README says is true of the code."""

import json
import re
import shlex

import pytest

from configs.files import shipped_configs
from configs.names import DIMENSION_NAMES
from data.create_tfrecords import build_parser as records_parser
from data.record_globs import glob_of_data_set
from evaluation.command_line import parse_arguments as parse_scoring_arguments
from serving.server.command_line import parse_arguments as parse_server_arguments
from utils.command_line import parse_arguments
from utils.run_log import LOG_FOLDER


@pytest.fixture(scope="module")
def readme(repo_root):
    return (repo_root / "README.md").read_text(encoding="utf-8")


def commands(text, program):
    """Words of every command of ``program``, in code blocks and inline, joined lines undone."""
    joined = text.replace("\\\n", " ")
    found = re.findall(rf"python {re.escape(program)} ([^`\n]*)", joined)
    assert found, program
    return [shlex.split(command) for command in found]


def test_commands_of_main_are_accepted(readme):
    for words in commands(readme, "main.py"):
        if "NAME" not in words:
            parse_arguments(words)


def test_commands_of_the_server_are_accepted(readme, repo_root):
    docs = (repo_root / "docs" / "serving.md").read_text(encoding="utf-8")
    for text in (readme, docs):
        for words in commands(text, "serve.py"):
            parse_server_arguments(words)


def test_commands_that_score_tasks_are_accepted(readme, repo_root):
    docs = (repo_root / "docs" / "evaluation.md").read_text(encoding="utf-8")
    for text in (readme, docs):
        for words in commands(text, "evaluate.py"):
            parse_scoring_arguments(words)


def test_commands_that_make_records_are_accepted(readme):
    for words in commands(readme, "data/create_tfrecords.py"):
        records_parser().parse_args(words)


def test_models_of_commands_are_shipped_or_the_readers_own(readme):
    for words in commands(readme, "main.py"):
        name = words[words.index("--model") + 1]
        assert name in {*shipped_configs(), "my_config", "NAME"}


def test_links_lead_somewhere(readme, repo_root):
    links = re.findall(r"\]\(([^)#]+)\)", readme)
    assert links
    assert [link for link in links if not (repo_root / link).exists()] == []


def test_json_of_the_dataset_config_is_valid(readme, repo_root):
    from configs.datasets import DatasetConfig

    [block] = re.findall(r"```json\n(\{.*?\})\n```", readme, re.DOTALL)
    DatasetConfig(**json.loads(block))


def test_the_dataset_config_names_the_records_that_the_commands_make(readme):
    [block] = re.findall(r"```json\n(\{.*?\})\n```", readme, re.DOTALL)
    values = json.loads(block)
    made = {}
    for words in commands(readme, "data/create_tfrecords.py"):
        arguments = records_parser().parse_args(words)
        made[arguments.name] = glob_of_data_set(arguments.output_dir, arguments.name, False)
    assert made == {"train": values["path"], "eval": values["eval_path"]}


def test_the_log_file_is_where_it_is_said_to_be(readme):
    assert f"`{LOG_FOLDER}/my_config.log`" in readme


def test_every_dimension_that_a_layout_may_name_is_listed(readme):
    [sentence] = re.findall(r"A layout may name (.*?)\.", readme)
    listed = set(re.findall(r"`(\w+)`", sentence))
    assert listed == set(DIMENSION_NAMES) - {"features_per_head"}
