"""What the tests of data/create_tfrecords.py share: texts, command lines, and what was made."""

import json
import os

import numpy as np
import tokenizers

from data.create_tfrecords import main
from data.documents import find_files, read_keyed_documents
from data.records import compression_of, record_files
from data.tokenizers import load_tokenizer

WINDOW = 6
CHUNKS = ("--mode", "chunks", "--chunk_size", str(WINDOW - 1))
TEXTS = [f"Document {n}: " + f"word{n * 7} " * (n % 9) + "é" * (n % 4) for n in range(60)]


def prompt_of(n):
    return {"prompt": f"What is {n}? ", "completion": TEXTS[n]}


def train_tokenizer(path, size):
    own = tokenizers.ByteLevelBPETokenizer()
    own.train_from_iterator(
        TEXTS, vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False
    )
    own.save(str(path))


def write_corpora(folder):
    """A tokenizer of 300 ids, which loads at once, and documents in files of several kinds."""
    train_tokenizer(folder / "own.json", 300)
    (folder / "in" / "sub").mkdir(parents=True)
    for name, some in (("a.jsonl", TEXTS[:25]), ("sub/b.jsonl", TEXTS[26:])):
        (folder / "in" / name).write_text("".join(json.dumps({"text": t}) + "\n" for t in some))
    (folder / "in" / "c.txt").write_text(TEXTS[25])
    lines = [json.dumps(prompt_of(n) if n % 3 else {"text": TEXTS[n]}) for n in range(60)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    return folder


def arguments(folder, output, *options, source="in"):
    return [
        *("--input_dir", str(folder / source), "--output_dir", str(output), "--name", "set"),
        *("--encoder_path", str(folder / "own.json"), "--processes", "1", "--files_per", "50"),
        *options,
    ]


def make(folder, output, *options, source="in"):
    assert main(arguments(folder, output, *options, source=source)) == 0
    return records(output)


def records(output):
    """Ids of all records, masked ones as their complement."""
    import tensorflow as tf

    found = []
    for path in record_files(str(output), "set"):
        options = tf.io.TFRecordOptions(compression_of(path))
        for content in tf.compat.v1.io.tf_record_iterator(path, options):
            feature = tf.train.Example.FromString(content).features.feature
            ids = np.array(feature["text"].int64_list.value, np.int64)
            if "loss_mask" in feature:
                counts = np.array(feature["loss_mask"].int64_list.value)
                assert set(counts) <= {0, 1}
                ids = np.where(counts == 1, ids, ~ids)
            found.append(ids.tolist())
    return found


def files_of(output):
    return {name: (output / name).read_bytes() for name in os.listdir(output) if name[0] != "."}


def encoded(folder, source="in"):
    """Key and ids of each document, by plain means."""
    encode = load_tokenizer(str(folder / "own.json"), is_pretrained=False).encode
    for document in read_keyed_documents(find_files(str(folder / source))[0]):
        prompt = [] if document.prompt is None else [~i for i in encode(document.prompt)]
        yield document.key, prompt + encode(document.text)


def complaint(capsys, argv):
    capsys.readouterr()
    assert main(argv) == 2
    return capsys.readouterr().err.strip().splitlines()[-1]
