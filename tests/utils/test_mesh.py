"""Mesh and layout as values."""

import pytest

from tests.support import make_config
from utils.mesh import SLOT_PART, MeshLayout
from utils.mesh_tensorflow import mtf


@pytest.fixture
def pod() -> MeshLayout:
    config = make_config(
        mesh_shape="x:8,y:2", layout="batch:x,vocab:y,embed_sequence:y", train_batch_size=24
    )
    return MeshLayout.from_config(config)


def test_from_config(pod):
    assert pod.axes == (("x", 8), ("y", 2))
    assert pod.rules == (("batch", "x"), ("vocab", "y"), ("embed_sequence", "y"))
    assert pod.size == 16
    assert pod.mesh_shape.to_string == "Shape[x=8, y=2]"


def test_slices(pod):
    assert pod.slices(mtf.Dimension("batch", 24)) == 8
    assert pod.slices(mtf.Dimension("vocab", 22)) == 2
    assert pod.slices(mtf.Dimension("sequence", 10)) == 1
    assert MeshLayout((("x", 1),), (("batch", "x"),)).slices(mtf.Dimension("batch", 3)) == 1


def test_a_layout_without_rules_splits_nothing():
    layout = MeshLayout.from_config(make_config(layout=""))
    assert layout.rules == ()
    assert layout.slices(mtf.Dimension("batch", 6)) == 1


def test_placement_lays_tensors_out(pod):
    implementation = pod.placement([f"device:CPU:{number}" for number in range(16)])
    shape = mtf.Shape([mtf.Dimension("batch", 24), mtf.Dimension("vocab", 22)])
    assert implementation.slice_shape(shape) == [3, 11]
    assert implementation.devices[5] == "device:CPU:5"


def test_placement_needs_one_device_per_processor(pod):
    with pytest.raises(AssertionError):
        pod.placement(["device:CPU:0"])


def test_equal_layouts_are_equal_values(pod):
    assert pod == MeshLayout(pod.axes, pod.rules)
    assert hash(pod) == hash(MeshLayout(pod.axes, pod.rules))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"vocab": 22, "embd": 16}, "vocab=22, optimizer_shard=16"),  # vocab is split over y
        ({"embd": 16, "heads": 24}, "embd=16, optimizer_shard=24"),
        ({"heads": 24, "embd": 16}, "optimizer_shard=24, embd=16"),
        ({"heads": 25, "embd": 16}, "heads=25, optimizer_shard=16"),
        ({"heads": 25, "embd": 15}, "heads=25, embd=15"),
        ({"batch": 16, "embd": 16}, "batch=16, embd=16"),  # uses the axis already
        ({"embd": 16}, "embd=16"),
    ],
    ids=str,
)
def test_dims_of_optimizer_slots(pod, sizes, expected):
    shape = mtf.Shape([mtf.Dimension(name, size) for name, size in sizes.items()])
    assert pod.slot_shape(shape) == shape  # without an axis of their own
    split = MeshLayout(pod.axes, (*pod.rules, (SLOT_PART, "x")))
    assert split.slot_shape(shape).to_string == f"Shape[{expected}]"


def test_an_axis_for_optimizer_slots_is_a_rule_of_the_layout():
    keys = {"mesh_shape": "x:2", "layout": "batch:x", "optimizer_shard_axis": "x"}
    assert MeshLayout.from_config(make_config(**keys)).rules == (("batch", "x"), (SLOT_PART, "x"))
