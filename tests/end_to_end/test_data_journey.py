"""The commands of docs/data.md, run one after another in a folder with small corpora."""

import contextlib
import io
import json
import random
import re
import shlex

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from configs.datasets import DatasetConfig
from data import create_tfrecords, dataset_config, train_tokenizer
from tests.end_to_end.workshop import Program

SMALL = {"n_layer": 1, "n_embd": 16, "n_head": 2, "train_batch_size": 2}
SMALL |= {"train_steps": 2, "warmup_steps": 0}


@pytest.fixture(scope="module")
def page(repo_root):
    return (repo_root / "docs" / "data.md").read_text(encoding="utf-8")


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)\n```", page, re.DOTALL)


def commands(page):
    """Words of every command in a block of commands, joined lines undone."""
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines]
    assert len(found) > 6 and all(words[0] == "python" for words in found)
    return found


def sentences(random_, count):
    """Words are made of few syllables, so that pairs repeat."""
    syllables = ["ka", "to", "mi", "ne", "ru", "so", "lin", "ber", "art", "ix"]
    words = ["".join(random_.choices(syllables, k=3)) for _ in range(200)]
    return [" ".join(random_.choices(words, k=12)).capitalize() + "." for _ in range(count)]


def write_corpora(folder):
    random_ = random.Random(5)
    for place in ("my_text", "my_text_held_out"):
        (folder / place / "more").mkdir(parents=True)
        (folder / place / "first.txt").write_text("\n".join(sentences(random_, 400)))
        lines = [json.dumps({"text": text}) for text in sentences(random_, 100)]
        (folder / place / "more" / "second.jsonl").write_text("\n".join(lines))
    pairs = [
        {"prompt": f"Question: {question}\nAnswer:", "completion": f" {answer}"}
        for question, answer in zip(sentences(random_, 200), sentences(random_, 200))
    ]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, pairs)))


class Reader:
    """Somebody who does what the page says, in a folder."""

    def __init__(self, page, folder, program):
        self.page, self.folder, self.program = page, folder, program
        self.printed = []  # what the commands print that make records

    def block(self, key):
        """The only JSON of the page that has a key."""
        [content] = [found for found in map(json.loads, blocks(self.page, "json")) if key in found]
        return content

    def write_configs(self):
        """Adds eval_path to the dataset config, and writes the model config, made small."""
        path = self.folder / "dataset_configs" / "books.json"
        written, shown = json.loads(path.read_text()), self.block("eval_path")
        for key in ("path", "tokenizer_path"):
            assert written[key] == f"{self.folder}/{shown[key]}"
        for key in ("tokenizer_is_pretrained", "eos_id", "padding_id"):
            assert written[key] == shown[key]
        assert shown.keys() == written.keys() | {"eval_path"}
        path.write_text(json.dumps(written | {"eval_path": shown["eval_path"]}))
        model = self.block("n_layer") | SMALL | {"n_vocab": written["n_vocab"]}
        (self.folder / "my_config.json").write_text(json.dumps(model))

    def run(self, script, words):
        if script != "main.py":
            programs = {
                module.__name__: module.main for module in (train_tokenizer, create_tfrecords)
            }
            name = script.removesuffix(".py").replace("/", ".")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                assert programs[name](words) == 0, words
            if name == create_tfrecords.__name__:
                self.printed.append(printed.getvalue())
            return
        if not (self.folder / "my_config.json").exists():
            self.write_configs()
        result = self.program(*words)
        assert result.code == 0, (words, result)
        if "--check_dataset" in words:
            assert "Answer:⟩ " in result.out and "⟦eos⟧⟨Question: " in result.out
            assert "75.0% of the mix" in result.out and "25.0% of the mix" in result.out
            assert result.out.count(".manifest.json: chunks of 1,024 + 1 ids") == 3
            self.check_output(result.out)

    def check_output(self, report):
        """The two outputs that the page shows are those of its commands, numbers aside."""
        account, section = blocks(self.page, "text")
        assert self.shape(account) == self.shape(self.printed[0])
        sections = report.split("\n\n")
        [printed] = [found for found in sections if found.startswith("answers, training")]
        assert self.shape(section) == self.shape(printed)

    def shape(self, text):
        """Lines with a sign for each number and each fingerprint, and no text of samples."""
        text = text.replace(f"{self.folder}/", "")
        text = re.sub(r"(?<=fingerprint )\w{8}", "#", text)
        text = re.sub(r"(  sample \d   ⟨).*", r"\1", text)
        return re.sub(r"\d[\d,.]*\d|\d", "#", text).strip().splitlines()


def test_all_commands_run(page, tmp_path, monkeypatch, capfd):
    write_corpora(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dataset_config, "_FOLDER", tmp_path / "dataset_configs")
    reader = Reader(page, tmp_path, Program(capfd))
    for _, script, *words in commands(page):
        reader.run(script, words)
    for dataset, name in (("books", "train"), ("books", "eval"), ("answers", "train")):
        assert (tmp_path / "datasets" / dataset / f"{name}.manifest.json").exists()
    assert list((tmp_path / "runs" / "mine").glob("model.ckpt-2.*"))


def test_numbers_of_the_page_add_up(page):
    sums = [
        [int(number.replace(",", "")) for number in numbers]
        for numbers in re.findall(r"([\d,]+) read = ([\d,]+) kept \+ ([\d,]+) dropped", page)
    ]
    assert len(sums) == 4
    assert [read for read, kept, dropped in sums if read != kept + dropped] == []


def test_json_of_the_page_is_valid(page):
    for text in blocks(page, "json"):
        content = json.loads(text)
        if "eval_path" in content:
            DatasetConfig(**content)


def test_links_lead_somewhere(page, repo_root):
    links = re.findall(r"\]\(([^)#]+)\)", page)
    assert links
    assert [link for link in links if not (repo_root / "docs" / link).exists()] == []


def test_flags_of_the_page_are_flags(page):
    """Those in tables and sentences, too."""
    known = {"--check_dataset", "--eval", "--model", "--steps_per_checkpoint"}
    beam_parsers = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=beam_parsers.append)
    known.add("--parallelism")  # of Flink's job server
    parsers = [train_tokenizer.build_parser(), create_tfrecords.build_parser(), *beam_parsers]
    for parser in parsers:
        known |= {flag for action in parser._actions for flag in action.option_strings}
    assert set(re.findall(r"--[a-zA-Z][a-zA-Z0-9_-]+", page)) <= known
