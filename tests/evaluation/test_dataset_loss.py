"""Scores of a data set against numpy, on several meshes, with a batch that is not full."""

import json
import logging
import math

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from data.record_writer import RecordWriter
from evaluation.dataset_loss import DatasetLoss, append_scores
from model_fns import Placement
from tests.data.test_labelled_records import write_examples
from tests.support import Forward, cpus, make_config, random_variables, write_checkpoint
from utils.devices import place_inference

N_CTX, N_VOCAB, RECORDS = 10, 22, 11
# One byte, two bytes, the end of text; ids from 16 on pad the embedding and stand for nothing.
TOKENS = [*"abcdefghijkl", "ab", "Ġa", "Ġ"]
BYTES = np.array([1] * 12 + [2, 2, 1, 0] + [0] * 6)
EOS = 15


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("Ġ", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    assert tokenizer.token_to_id("<|endoftext|>") == EOS
    tokenizer.save(str(folder / "tokenizer.json"))
    with RecordWriter(str(folder), "eval", files_per=4) as writer:
        for record in records():
            writer.write(record.tolist())
    write_checkpoint(folder, random_variables(config_of(folder), seed=8), step=13)
    return folder


def records():
    return np.random.default_rng(2).integers(0, EOS + 1, (RECORDS, N_CTX + 1))


def config_of(folder, tokenizer=True, **keys):
    if tokenizer:
        dataset = {
            "id": "tiny",
            "n_vocab": EOS + 1,
            "path": str(folder / "train_*"),
            "eval_path": str(folder / "eval_*"),
            "tokenizer_is_pretrained": False,
            "tokenizer_path": str(folder / "tokenizer.json"),
            "eos_id": EOS,
            "padding_id": EOS,
        }
        entry = [dataset, None, None, None]
    else:
        entry = [str(folder / "train_*"), str(folder / "eval_*"), 1, "documents_random", 1.0]
    standard = {"eos_id": EOS, "padding_id": EOS, "eval_batch_size": 4, "z_loss": 0.01}
    standard |= {"model_path": str(folder), "n_ctx": N_CTX, "n_vocab": N_VOCAB}
    return make_config(**(standard | {"datasets": [entry]} | keys))


def scores_of(config, max_batches=0):
    devices = cpus(config.mesh_size) if config.mesh_size > 1 else ()
    fit = place_inference(config, devices, config.eval_batch_size, "eval_batch_size")
    assert fit.mesh_layout.size == config.mesh_size
    loss = DatasetLoss(config, Placement(fit.mesh_layout, fit.devices), max_batches)
    try:
        return loss.evaluate(f"{config.model_path}/model.ckpt-13")
    finally:
        loss.close()


@pytest.fixture(scope="module")
def expected(folder):
    """The scores in numpy, float64, from the logits of each record."""
    config = config_of(folder, eval_batch_size=RECORDS)
    inputs, labels = records()[:, :-1], records()[:, 1:]
    logits = Forward(config, f"{folder}/model.ckpt-13")(inputs)["logits"].astype(np.float64)
    log_z = np.log(np.exp(logits).sum(-1))
    chosen = np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    return {"cross_entropy": log_z - chosen, "z": 0.01 * log_z**2, "logits": logits}


def summary(expected, rows):
    cross_entropy = expected["cross_entropy"][:rows].mean()
    byte_count = int(BYTES[records()[:rows, 1:]].sum())
    return {
        "bits per byte": cross_entropy * rows * N_CTX / math.log(2) / byte_count,
        "loss": cross_entropy + expected["z"][:rows].mean(),
        "mean_logits": expected["logits"][:rows].mean(),
        "perplexity": math.exp(cross_entropy),
        "global_step": 13,
        "cross_entropy": cross_entropy,
        "tokens": rows * N_CTX,
        "bytes": byte_count,
    }


@pytest.mark.parametrize("batch_size", [4, 11, 13])
def test_scores_equal_numpy_with_a_full_and_a_partial_batch(folder, expected, batch_size):
    scores = scores_of(config_of(folder, eval_batch_size=batch_size))
    assert scores == pytest.approx(summary(expected, RECORDS), rel=1e-5, abs=1e-6)


def test_scores_are_means_over_the_labels_that_a_loss_mask_leaves(folder, expected, tmp_path):
    masks = (np.random.default_rng(4).random((RECORDS, N_CTX + 1)) < 0.4).astype(int)
    masks[3], masks[5] = 0, 1
    path = tmp_path / f"eval_0_{RECORDS}.tfrecords"
    write_examples(path, *zip(records(), masks))
    config = config_of(folder)
    [entry] = config.to_json_dict()["datasets"]
    entry[0]["eval_path"] = str(path)
    scores = scores_of(config_of(folder, datasets=[entry]))
    counts = masks[:, 1:] == 1
    cross_entropy = expected["cross_entropy"][counts].mean()
    byte_count = int(BYTES[records()[:, 1:]][counts].sum())
    wanted = {
        "bits per byte": cross_entropy * counts.sum() / math.log(2) / byte_count,
        "loss": cross_entropy + expected["z"][counts].mean(),
        "mean_logits": expected["logits"][counts].mean(),
        "perplexity": math.exp(cross_entropy),
        "global_step": 13,
        "cross_entropy": cross_entropy,
        "tokens": counts.sum(),
        "bytes": byte_count,
    }
    assert scores == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_scores_of_the_first_batches_only(folder, expected):
    scores = scores_of(config_of(folder), max_batches=2)
    assert scores == pytest.approx(summary(expected, 8), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("mesh_shape", "layout"),
    [("x:2", "batch:x"), ("x:2,y:2", "batch:x,heads:y,vocab:y"), ("x:2", "embd:x")],
)
def test_a_split_mesh_gives_the_same_scores(folder, expected, mesh_shape, layout):
    scores = scores_of(config_of(folder, mesh_shape=mesh_shape, layout=layout))
    assert scores == pytest.approx(summary(expected, RECORDS), rel=1e-5, abs=1e-6)


def test_one_graph_scores_one_checkpoint_after_another(folder, tmp_path, expected):
    config = config_of(folder)
    fit = place_inference(config, (), 4, "eval_batch_size")
    loss = DatasetLoss(config, Placement(fit.mesh_layout, fit.devices), 0)
    other = write_checkpoint(tmp_path, random_variables(config, seed=9), step=14)
    first, second, again = (
        loss.evaluate(path)
        for path in (f"{folder}/model.ckpt-13", other, f"{folder}/model.ckpt-13")
    )
    loss.close()
    assert first == again == pytest.approx(summary(expected, RECORDS), rel=1e-5, abs=1e-6)
    assert second["global_step"] == 14
    assert abs(second["cross_entropy"] - first["cross_entropy"]) > 1e-3


def test_without_a_tokenizer_bits_per_byte_is_left_out_with_a_warning(folder, caplog):
    config = config_of(folder, tokenizer=False)
    with caplog.at_level(logging.WARNING):
        scores = scores_of(config)
    assert "bits per byte" not in scores
    assert scores["tokens"] == RECORDS * N_CTX
    assert "bits per byte is left out: the dataset names no tokenizer" in caplog.text


def test_with_an_unreadable_tokenizer_bits_per_byte_is_left_out(folder, tmp_path, caplog):
    config = config_of(folder)
    entry = config.to_json_dict()["datasets"][0]
    entry[0]["tokenizer_path"] = str(tmp_path / "gone.json")
    with caplog.at_level(logging.WARNING):
        scores = scores_of(config_of(folder, datasets=[entry]))
    assert "bits per byte" not in scores
    assert "bits per byte is left out: tokenizer file must exist; got" in caplog.text


def test_scores_are_appended_as_json_lines(folder):
    config = config_of(folder)
    for step in (1, 2):
        path = append_scores(config, "9", {"loss": 0.5, "global_step": step})
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    assert path == f"{folder}/eval_9.jsonl"
    assert lines == [{"loss": 0.5, "global_step": 1}, {"loss": 0.5, "global_step": 2}]
