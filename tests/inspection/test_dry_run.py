"""The text of a dry run."""

import re

import pytest

from configs.load import load_config
from inspection.dry_run import dry_run_report, dry_run_text, variable_rows, with_unit
from scripts.generate_docs import measured


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (12_345_678, "12.35 MB"), (2e15, "2.00 PB")],
)
def test_with_unit(value, text):
    assert with_unit(value, "B") == text


def test_layers_that_are_alike_share_a_row():
    run = measured("gpt3_13B")
    rows = variable_rows(run.weights)[1:]
    assert len(rows) == 17
    [query] = [row for row in rows if "attn/q" in row[0]]
    assert query == [
        "gpt2/h0…h39/attn/q",
        "x40",
        "embd:z 5120 x heads:y 5120",
        "26,214,400",
        "819,200",
    ]
    counts = [int(row[1][1:] or 1) for row in rows]
    elements = [int(row[3].replace(",", "")) for row in rows]
    assert sum(n * size for n, size in zip(counts, elements)) == run.parameters


def test_a_report_of_a_large_model_is_a_page():
    text = dry_run_text(measured("gpt3_13B"))
    assert len(text.splitlines()) <= 70
    assert max(len(line) for line in text.splitlines()) <= 125
    assert "Parameters: 12,852,807,680 in 524 variables, 404,291,840 per processor" in text
    assert "mesh x:8,y:8,z:4 = 256 processors" in text
    assert "adam_m, adam_v" in text
    assert re.search(
        r"tokens per step +2,097,152  1024 x 2048, in 64 microbatches of 2 x 2048 on", text
    )
    assert re.search(r"forward and backward +109\.\d\d GFLOP  per token, 1\.42\d x 6N", text)


def test_a_report_tells_what_processors_send_each_other():
    text = dry_run_text(measured("gpt3_13B"))
    section = text.partition("Communication of one step\n")[2].partition("\n\n")[0].splitlines()
    # Of 2 x 2,048 x 1,280 bfloat16 activations: behind attention and behind the feed-forward layer
    # of 40 layers, in the forward pass and when it is recomputed, for each of 64 microbatches.
    [stream] = [line for line in section if "matmul [batch, sequence, embd]" in line]
    times = 2 * 40 * 2 * 64
    assert re.search(rf"all-reduce over y .* {times:,} x 10\.49 MB +187\.90 GB$", stream)
    assert re.search(r"all-reduce over x +\d+ times +\d+\.\d\d GB$", section[0])
    assert any(re.search(r"all +\d+\.\d\d GB  sent by one processor$", line) for line in section)


def test_the_excerpt_in_the_readme_is_of_this_report(repo_root):
    readme = (repo_root / "README.md").read_text(encoding="utf-8")
    block = readme.partition("$ python main.py --model gpt3_13B --dry_run\n")[2].partition("```")[0]
    lines = [line for line in block.splitlines() if line != "…"]
    assert len(lines) > 20
    assert set(lines) <= set(dry_run_text(measured("gpt3_13B")).splitlines())


def test_a_report_of_one_processor():
    sizes = ("n_layer=4", "n_embd=128", "n_head=4", "n_ctx=128", "n_vocab=50257")
    text = dry_run_report(load_config("tiny", [*sizes, "mesh_shape=x:1", "layout=batch:x"]))
    assert "mesh x:1 = 1 processor, layout batch:x" in text
    assert "on the host" not in text
    assert "microbatches" not in text
    assert "Communication of one step: none" in text
    assert re.search(r"weights +28\.96 MB", text)
    assert re.search(r"optimizer slots +57\.93 MB", text)
    assert re.search(r"gradients +28\.96 MB", text)
