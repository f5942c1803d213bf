"""Which devices a run gets, and what it says when they do not fit the mesh."""

import pytest
import tensorflow as tf

from inspection.mesh_fit import fit_mesh
from tests.support import cpus, make_config
from utils.devices import check_devices, place_inference, place_training, session_config
from utils.mesh import MeshLayout

# A config of a pod, as GPT-Neo ships them.
POD = {
    "mesh_shape": "x:128,y:2",
    "layout": "batch:x,memory_length:y,embd:y",
    "train_batch_size": 256,
}


def test_training_refuses_a_mesh_of_another_size():
    with pytest.raises(ValueError) as caught:
        place_training(make_config(**POD), ())
    assert str(caught.value) == (
        "mesh_shape must have as many processors as there are devices; got x:128,y:2 = 256 on 1 "
        "(the CPU). Add --fit_mesh to fit the mesh to the devices, name 256 with --gpu_ids, or "
        "look at the job with --dry_run."
    )
    with pytest.raises(ValueError) as caught:
        place_training(make_config(), cpus(2))
    assert "got x:1 = 1 on 2 (device:CPU:0, device:CPU:1). Add --fit_mesh" in str(caught.value)


def test_the_remedy_of_that_error_works():
    config = fit_mesh(make_config(**POD), 1).config
    fit = place_training(config, ())
    assert fit.mesh_layout == MeshLayout.from_config(config)
    assert fit.devices == ("",)
    assert not fit.notices


def test_training_on_named_devices():
    config = make_config(mesh_shape="x:2,y:2", layout="batch:x,embd:y")
    fit = place_training(config, cpus(4))
    assert fit.devices == cpus(4)
    assert fit.mesh_layout.size == 4


@pytest.mark.parametrize("devices", [(), ("device:CPU:0",)])
def test_the_only_cpu_is_left_unnamed(devices):
    """A name would keep a second copy of every weight."""
    assert place_training(make_config(), devices).devices == ("",)
    assert place_inference(make_config(), devices, 1, "eval_batch_size").devices == ("",)


def test_a_second_cpu_keeps_its_name():
    assert place_training(make_config(), ("device:CPU:1",)).devices == ("device:CPU:1",)


@pytest.mark.parametrize("devices", [(), cpus(3)])
def test_inference_shrinks_the_mesh_with_a_notice(devices):
    config = make_config(**POD)
    fit = place_inference(config, devices, 3, "predict_batch_size")
    assert fit.mesh_layout == MeshLayout((("x", 1), ("y", 1)), config.layout_rules)
    assert fit.devices == ("",)
    assert fit.notices == (
        f"mesh_shape x:128,y:2 = 256 processors does not fit {len(devices) or 1} device(s); "
        "running on one",
    )


def test_inference_on_a_mesh_that_fits_is_left_alone():
    config = make_config(mesh_shape="x:2,y:2", layout="batch:x,embd:y")
    fit = place_inference(config, cpus(4), 6, "eval_batch_size")
    assert fit.mesh_layout == MeshLayout.from_config(config)
    assert fit.devices == cpus(4)
    assert fit.notices == ()


def test_a_batch_that_does_not_divide_is_not_split():
    config = make_config(mesh_shape="x:2,y:2", layout="embd:y,batch:x")
    fit = place_inference(config, cpus(4), 3, "predict_batch_size")
    assert fit.mesh_layout == MeshLayout((("x", 2), ("y", 2)), (("embd", "y"),))
    assert fit.devices == cpus(4)
    assert fit.notices == ("predict_batch_size 3 is not a multiple of 2; the batch is not split",)


def test_dimensions_that_the_work_needs_whole_are_not_split():
    config = make_config(mesh_shape="x:2,y:2", layout="sequence:x,embd:y")
    fit = place_inference(config, cpus(4), 3, "predict_batch_size", ("sequence",))
    assert fit.mesh_layout == MeshLayout((("x", 2), ("y", 2)), (("embd", "y"),))
    assert fit.notices == ("layout: sequence cannot be split here; left out",)


def test_inference_judges_the_mesh_that_it_runs_on():
    broken = make_config().model_copy(update={"mesh_shape": "x:3", "layout": "batch:x,vocab:x"})
    broken = broken.model_copy(update={"n_vocab": 64})
    assert place_inference(broken, (), 4, "eval_batch_size").mesh_layout.size == 1
    with pytest.raises(ValueError, match="n_vocab: must be a multiple of 3"):
        place_inference(broken, cpus(3), 4, "eval_batch_size")
    assert place_inference(broken, cpus(3), 4, "eval_batch_size", ("vocab",)).mesh_layout.size == 3


def test_a_gpu_that_is_not_there_is_refused():
    found = len(tf.config.list_physical_devices("GPU"))
    missing = f"device:GPU:{found + 1}"
    expected = (
        f"--gpu_ids must name devices that TensorFlow sees; got {missing} where it sees {found} "
        "GPU(s). Install tensorflow[and-cuda] and a driver, name other devices, or leave the "
        "flag out to run on the CPU."
    )
    for call in (
        lambda devices: check_devices(devices),
        lambda devices: place_training(make_config(), devices),
        lambda devices: place_inference(make_config(), devices, 1, "eval_batch_size"),
    ):
        with pytest.raises(ValueError) as caught:
            call((missing,))
        assert str(caught.value) == expected


def test_only_missing_gpus_are_named(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu"] * 2)
    check_devices(("device:GPU:0", "device:GPU:1", "device:CPU:0"))
    with pytest.raises(ValueError, match=r"got device:GPU:2, device:GPU:7 where it sees 2 GPU"):
        check_devices(("device:GPU:1", "device:GPU:2", "device:GPU:7"))


def test_cpus_are_virtual_and_always_there():
    check_devices(cpus(64))
    assert session_config(cpus(3)).device_count["CPU"] == 3
    assert session_config(("device:CPU:5",)).device_count["CPU"] == 6
    assert session_config(("",)).device_count["CPU"] == 1
    with tf.Graph().as_default():
        with tf.device("device:CPU:2"):
            three = tf.constant(3)
        config = session_config(cpus(3))
        config.allow_soft_placement = False
        with tf.compat.v1.Session(config=config) as session:
            assert session.run(three) == 3


def test_gpus_keep_the_whole_graph_optimizer():
    """What is left out has been measured on CPUs alone."""
    plain = tf.compat.v1.ConfigProto().graph_options
    assert session_config(("device:GPU:0",)).graph_options == plain
    assert session_config(cpus(2)).graph_options != plain
