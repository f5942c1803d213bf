"""The tokenizer goes along: what a model reads and writes is the same text on both sides."""

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer

import main
from configs.load import load_config
from data.tokenizers import load_tokenizer
from interop.tokenizer_files import tokenizer_in
from serving.samples import tokenizer_of
from tests.interop.support import convert, copy_model, error_of, save_weights, weights
from tests.support import make_config, random_variables, write_checkpoint

LETTERS = "abcdefghijklmnopqrstuvwxyzĠ"
TEXT = "some words of the test"


def small_tokenizer(size=60, fillers=0):
    """Of letters and a few merges; the last id but the fillers ends a document."""
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("o", "f"), ("w", "o")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    for number in range(len(vocabulary), size - 1):
        vocabulary[f"<unused{number}>"] = number
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    backend.add_tokens([f"<|extratoken_{number}|>" for number in range(1, fillers + 1)])
    return backend


@pytest.fixture
def model(fixtures_dir, tmp_path):
    """GPT-Neo with 97 rows and a tokenizer of 97."""
    folder = copy_model(fixtures_dir, "gpt_neo", tmp_path / "model", eos_token_id=96)
    small_tokenizer(97).save(str(folder / "tokenizer.json"))
    return folder


def test_a_tokenizer_of_its_own(model, tmp_path, capsys):
    expected = small_tokenizer(97).encode(TEXT).ids
    convert(model, tmp_path / "ours")
    path = tmp_path / "ours" / "config.json"
    config = load_config(str(path))
    assert config.eos_id == 96
    assert tokenizer_of(config).encode(TEXT) == expected
    convert(tmp_path / "ours", tmp_path / "back")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "back")
    assert loaded(TEXT)["input_ids"] == expected
    assert loaded.decode(expected) == TEXT
    assert (loaded.eos_token, loaded.eos_token_id) == ("<|endoftext|>", 96)
    # And the model writes with it.
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(TEXT)
    capsys.readouterr()
    words = ["--model", str(path), "--predict", "--prompt", str(prompt), "--max_new_tokens", "3"]
    assert main.main([*words, "--temperature", "0"]) == 0
    assert TEXT in capsys.readouterr().out


def test_files_that_are_there_are_copied_as_they_are(model, tmp_path):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "x": 1}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "special_tokens_map.json").write_text('{"eos_token":"<|endoftext|>"}')
    convert(model, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (tmp_path / "back" / name).read_bytes() == (model / name).read_bytes()


def test_an_id_outside_of_the_vocabulary(model, tmp_path, caplog):
    """The tokenizer says what ends a document; without such a token it is a guess that is told."""
    values = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(values | {"eos_token_id": 5000}))
    convert(model, tmp_path / "ours")
    assert "is 5000, no id of the 97 tokens: the converted config gets eos_id 96;" in caplog.text
    assert load_config(str(tmp_path / "ours" / "config.json")).eos_id == 96


def test_vocabulary_and_merges(model, tmp_path):
    """The older pair of files; the end of the text is one of its tokens."""
    backend = small_tokenizer(97)
    vocabulary = backend.get_vocab(with_added_tokens=True)
    (model / "tokenizer.json").unlink()
    (model / "vocab.json").write_text(json.dumps(vocabulary))
    (model / "merges.txt").write_text("#version: 0.2\nt h\nth e\nĠ the\no f\nw o\n")
    convert(model, tmp_path / "ours")
    config = load_config(str(tmp_path / "ours" / "config.json"))
    assert tokenizer_of(config).encode(TEXT) == backend.encode(TEXT).ids
    assert tokenizer_of(config).eos_id == 96
    (model / "merges.txt").write_text("#version: 0.2\nt h e\n")
    with pytest.raises(ValueError, match=r"merges\.txt must be the vocabulary and merges of a"):
        tokenizer_in(str(model))


def test_gpt2_s_needs_no_file(model, tmp_path):
    """Its ids are known here: the config names no dataset, and any machine has it."""
    rows = 50_257
    tensors = weights(model)
    tensors["transformer.wte.weight"] = np.ones((rows, 24), np.float32)
    save_weights(model, tensors)
    values = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(values | {"vocab_size": rows}))
    (model / "tokenizer.json").write_text(load_tokenizer().to_json())
    convert(model, tmp_path / "ours")
    config = load_config(str(tmp_path / "ours" / "config.json"))
    assert config.sources == ()
    assert tokenizer_of(config).encode("Hello world") == [15496, 995]
    for path in (tmp_path / "ours").glob("tokenizer*"):
        path.unlink()  # as in a run of one's own
    convert(tmp_path / "ours", tmp_path / "back")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "back")
    assert loaded("Hello world")["input_ids"] == [15496, 995]


def test_rows_that_the_tokenizer_only_names(fixtures_dir, tmp_path):
    """GPT-J's has tokens for the rows that fill the vocabulary up; nothing writes them."""
    folder = copy_model(fixtures_dir, "gptj", tmp_path / "model", eos_token_id=None)
    small_tokenizer(90, fillers=11).save(str(folder / "tokenizer.json"))
    convert(folder, tmp_path / "ours")
    config = load_config(str(tmp_path / "ours" / "config.json"))
    assert (config.n_vocab, config.vocab_padding, config.eos_id) == (101, 11, 89)
    assert config.dataset.n_vocab == 90


def test_tokenizers_that_are_not_the_model_s(model, tmp_path, capsys):
    small_tokenizer(98).save(str(model / "tokenizer.json"))
    line = error_of(capsys, model, tmp_path / "ours")
    assert "must fit into the model's vocabulary of 97; got 98 tokens" in line
    (model / "tokenizer.json").write_text("[1]")
    line = error_of(capsys, model, tmp_path / "ours")
    assert "tokenizer file must be JSON of the tokenizers library" in line


def test_the_tokenizer_of_a_run(tmp_path):
    """It is where the dataset config says, and is written beside the exported weights."""
    path, run_folder = tmp_path / "mine.json", tmp_path / "run"
    backend = small_tokenizer(60)
    backend.save(str(path))
    run_folder.mkdir()
    dataset = {
        "n_vocab": 60, "path": "none/*.tfrecords", "tokenizer_is_pretrained": False,
        "tokenizer_path": str(path), "eos_id": 59, "padding_id": 59,
    }  # fmt: skip
    keys = {
        "n_vocab": 60,
        "eos_id": 59,
        "padding_id": 59,
        "datasets": [[dataset, None, None, None]],
    }
    config = make_config(model_path=str(run_folder), **keys)
    write_checkpoint(run_folder, random_variables(config, seed=2), step=4)
    (run_folder / "config.json").write_text(json.dumps(config.to_json_dict()))
    convert(run_folder, tmp_path / "theirs")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    assert loaded(TEXT)["input_ids"] == backend.encode(TEXT).ids
    assert loaded.eos_token_id == 59
