"""Layouts that auto_mtf proposes: always usable, and sensible where one knows the answer."""

import json
import re
import sys

import numpy as np
import pytest

from configs.load import load_config, parse_config
from configs.names import DIMENSION_NAMES
from inspection.layout_report import layout_report, mesh_report
from inspection.layout_search import (
    Candidate,
    _candidate,
    _proposal,
    _pruned,
    _questions,
    best_of,
    find_layouts,
    in_order_of_axes,
    mesh_shapes,
)
from inspection.prediction import Need, predict_need
from tests.support import make_config, random_batches, train
from utils.mesh_tensorflow import load_auto_mtf, mtf

WIDE = {"n_head": 4, "n_embd": 28, "n_ctx": 12, "n_vocab": 24, "n_layer": 1}
ONE_LAYER = {"attention_types": [[["global"], 1]]}


def pasted(report):
    """The lines before the first empty one, as keys of a config."""
    return json.loads("{" + report.partition("\n\n")[0] + "}")


def loaded(config, report):
    """The config with the printed lines: it must load."""
    return parse_config(config.to_json_dict() | pasted(report))


# ---- what auto_mtf is told ---------------------------------------------------------------------


def test_auto_mtf_may_split_what_a_config_may_and_nothing_else():
    config = make_config(eval_batch_size=4, train_batch_size=12, **WIDE | ONE_LAYER)
    free, for_generation = _questions(config, 4)
    mesh_shape = mtf.Shape([mtf.Dimension("x", 2), mtf.Dimension("y", 3)])
    validator = load_auto_mtf().valid_layouts.LayoutValidator
    asked = validator(free.graph, mesh_shape)
    names = set(DIMENSION_NAMES) - {"features_per_head", "experts"}
    assert asked.splittable_mtf_dimension_names == names
    # 12 sequences are trained on, but 4 evaluated.
    assert asked.is_valid_assignment("batch", "x")
    assert not asked.is_valid_assignment("batch", "y")
    assert asked.is_valid_assignment("vocab", "x")
    whole = names - validator(for_generation.graph, mesh_shape).splittable_mtf_dimension_names
    assert whole == {"sequence", "embed_sequence"}


def test_what_a_kernel_needs_whole_is_never_proposed():
    """Nothing but features_per_head could be split: not the heads, which are odd."""
    config = make_config(
        **WIDE | ONE_LAYER | {"n_head": 7, "n_vocab": 23, "n_ctx": 11, "mesh_shape": "x:2"},
        train_batch_size=5,
        eval_batch_size=5,
        layout="",
    )
    for question in _questions(config, 2):
        proposed = _proposal(question, (("x", 2),))
        assert set(proposed) <= {"embd", "intermediate_expanded"}


# ---- what is chosen ----------------------------------------------------------------------------


def chosen(config):
    own = Candidate(config, predict_need(config))
    return find_layouts(config, [config.mesh_axes], own)[0].config.layout


def test_many_sequences_split_the_batch():
    sizes = {"train_batch_size": 64, "eval_batch_size": 64, "mesh_shape": "x:4", "layout": ""}
    assert chosen(make_config(**WIDE | ONE_LAYER | sizes)) == "batch:x"


def test_a_batch_of_one_splits_the_weights():
    sizes = {"train_batch_size": 1, "eval_batch_size": 1, "mesh_shape": "x:2", "layout": ""}
    width = {"n_head": 4, "n_embd": 256, "n_ctx": 4, "n_vocab": 24, "n_layer": 1}
    rules = dict(load_rules(chosen(make_config(**width | ONE_LAYER | sizes))))
    assert "intermediate_expanded" in rules or "embd" in rules
    assert "batch" not in rules


def load_rules(layout):
    return [tuple(rule.split(":")) for rule in layout.split(",") if rule]


def candidate(layout, *need):
    return Candidate(make_config(mesh_shape="x:2,y:2", layout=layout), Need(*need))


def test_among_equals_the_layout_that_sends_least_is_best():
    least = candidate("batch:x,heads:y", 1000, 90, 5)
    near = candidate("batch:x", 1009, 10, 5)
    assert best_of([least, near]) is near
    assert best_of([least, candidate("batch:x", 1011, 10, 5)]) is least


def test_rules_that_help_nothing_are_left_out(monkeypatch):
    def need(config):
        rules = dict(config.layout_rules)
        return Need(1000 if "embed_sequence" in rules else 1005, 10, 5 if "vocab" in rules else 9)

    monkeypatch.setattr("inspection.layout_search.predict_need", need)
    start = candidate("batch:x,heads:y,embed_sequence:x", 1000, 10, 9)
    assert _pruned(start, "batch").config.layout == "batch:x,heads:y"
    start = candidate("batch:x,heads:y,vocab:y", 1005, 10, 5)
    assert _pruned(start, "batch").config.layout == "batch:x,vocab:y"  # heads helped nothing
    start = candidate("batch:x,heads:y", 1005, 10, 9)
    assert _pruned(start, "batch") is start  # y must split something


def test_a_layout_uses_every_axis():
    config = make_config(mesh_shape="x:2,y:3", **WIDE | ONE_LAYER)
    assert _candidate(config, (("x", 2), ("y", 3)), {"batch": "y"}) is None
    assert _candidate(config, (("x", 1), ("y", 3)), {"batch": "y"}) is not None


def test_axes_of_equal_size_are_taken_in_their_order():
    rules = {"batch": "y", "heads": "x", "vocab": "y"}
    assert in_order_of_axes(rules, (("x", 2), ("y", 2))) == {
        "batch": "x",
        "heads": "y",
        "vocab": "x",
    }
    assert in_order_of_axes(rules, (("x", 2), ("y", 4))) == rules


# ---- meshes ------------------------------------------------------------------------------------


def test_meshes_of_one_or_two_axes():
    config = make_config(mesh_shape="rows:2", layout="batch:rows")
    assert mesh_shapes(config, 12) == [
        (("rows", 12),),
        (("rows", 6), ("x", 2)),
        (("rows", 4), ("x", 3)),
    ]
    assert mesh_shapes(make_config(), 7) == [(("x", 7),)]


def test_a_mesh_for_three_processors():
    """auto_mtf's own search over meshes never ends for a number that is no power of two."""
    config = make_config(eval_batch_size=6, **WIDE | ONE_LAYER)
    report = mesh_report(config, 3)
    fitted = loaded(config, report)
    assert fitted.mesh_shape == "x:3"
    assert dict(fitted.layout_rules)["batch"] == "x"
    assert "the config's own" not in report


def test_no_layout_for_a_number_that_divides_nothing():
    config = make_config(**WIDE | ONE_LAYER)
    with pytest.raises(ValueError, match=r"must divide batches or sizes of the model; got 1009"):
        find_layouts(config, [(("x", 1009),)])


# ---- what is printed ---------------------------------------------------------------------------


def test_one_processor_splits_nothing():
    config = make_config()
    assert pasted(layout_report(config)) == {"layout": "batch:x"}
    pod = make_config(mesh_shape="x:2,y:2", layout="batch:x,heads:y")
    assert pasted(mesh_report(pod, 1)) == {"mesh_shape": "x:1,y:1", "layout": "batch:x,heads:y"}


def test_the_printed_layout_loads_and_needs_less_than_the_own():
    sizes = {"mesh_shape": "x:2,y:2", "layout": "embd:y", "optimizer_shard_axis": "x"}
    config = make_config(train_batch_size=8, eval_batch_size=4, **WIDE | ONE_LAYER | sizes)
    report = layout_report(config)
    found = loaded(config, report)
    assert "batch" in dict(found.layout_rules)
    assert predict_need(found).peak_bytes < predict_need(config).peak_bytes
    assert re.search(r"Why: it needs \d.*, \d+% less than the config's own \d", report)
    assert re.search(r"x:2,y:2  batch:x.* chosen$", report, re.MULTILINE)
    assert re.search(r"x:2,y:2  embd:y .* the config's own$", report, re.MULTILINE)
    assert max(map(len, report.splitlines())) < 120


def test_a_layout_that_is_as_good_as_any_is_kept():
    config = make_config(
        mesh_shape="x:4", train_batch_size=64, eval_batch_size=64, **WIDE | ONE_LAYER
    )
    report = layout_report(config)
    assert pasted(report) == {"layout": "batch:x"}
    assert "Why: it is the config's own; nothing that was found needs less" in report
    assert report.count("x:4 ") == 1


def test_the_13b_config():
    config = load_config("gpt3_13B")
    report = layout_report(config)
    found = loaded(config, report)
    assert dict(found.layout_rules)["batch"] == "x"
    assert predict_need(found).peak_bytes <= 1.01 * predict_need(config).peak_bytes
    assert "1 of the 40 layers" in report


def test_a_found_layout_trains_to_the_same_numbers(tmp_path):
    keys = WIDE | ONE_LAYER | {"train_batch_size": 4, "eval_batch_size": 4}
    whole = make_config(model_path=str(tmp_path / "whole"), **keys)
    found = loaded(whole, mesh_report(whole, 2))
    assert found.mesh_size == 2
    split = parse_config(found.to_json_dict() | {"model_path": str(tmp_path / "split")})
    batches = random_batches(whole, 2)  # the second reads what the first has updated
    losses = [[step["loss"] for step in train(c, batches).metrics] for c in (whole, split)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_missing_solver_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("mesh_tensorflow.auto_mtf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("mesh_tensorflow.auto_mtf", raising=False)
    for name in [name for name in sys.modules if name.startswith("ortools.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(RuntimeError, match=r"OR-Tools must be installed.*requirements\.txt"):
        load_auto_mtf()
