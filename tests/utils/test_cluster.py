"""Who the hosts of a run are: flags, TF_CONFIG, and their devices."""

import argparse
import json
import re

import pytest
import tensorflow as tf

from tests.support import cpus, make_config
from utils.cluster import (
    Cluster,
    Host,
    cluster_from_flags,
    cluster_from_tf_config,
    is_idle,
    log_suffix,
    read_cluster,
)
from utils.devices import place_training
from utils.training_run import make_estimator

KUBEFLOW = {
    "cluster": {"worker": ["b:2222", "c:2222"], "chief": ["a:2222"]},
    "task": {"type": "worker", "index": 1},
    "environment": "cloud",
}


def tf_config(**values):
    return cluster_from_tf_config(json.dumps(KUBEFLOW | values), 300)


# ---- flags and TF_CONFIG -----------------------------------------------------------------------


def test_the_variable_of_an_operator():
    cluster = tf_config()
    assert [str(host) for host in cluster.hosts] == [
        "chief 0 (a:2222)",
        "worker 0 (b:2222)",
        "worker 1 (c:2222)",
    ]
    assert cluster.chief.task == "/job:chief/task:0"
    assert str(cluster.here) == "worker 1 (c:2222)"
    assert not cluster.is_chief
    assert cluster.jobs == {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]}
    assert cluster.devices(("device:GPU:0", "device:GPU:1"))[1:4] == (
        "/job:chief/task:0/device:GPU:1",
        "/job:worker/task:0/device:GPU:0",
        "/job:worker/task:0/device:GPU:1",
    )


def test_a_master_is_a_chief_and_without_one_the_first_worker_is():
    master = tf_config(
        cluster={"master": ["a:1"], "worker": ["b:1"]}, task={"type": "master", "index": "0"}
    )
    assert str(master.chief) == "master 0 (a:1)"
    assert master.is_chief
    workers = tf_config(cluster={"worker": ["a:1", "b:1"]})
    assert str(workers.chief) == "worker 0 (a:1)"


@pytest.mark.parametrize("words", [["a:1,[::1]:2"], ["a:1", "[::1]:2"]])
def test_flags(words):
    cluster = cluster_from_flags(words, 1, 7)
    assert cluster == Cluster(
        (Host("worker", 0, "a:1"), Host("worker", 1, "[::1]:2")), Host("worker", 1, "[::1]:2"), 7
    )
    assert cluster.here.port == 2
    assert cluster.others == (cluster.chief,)


def namespace(mode="train", cluster=None, task=None, cluster_timeout=None):
    return argparse.Namespace(
        mode=mode, cluster=cluster, task=task, cluster_timeout=cluster_timeout
    )


def test_the_variable_is_taken_out_of_the_environment():
    """TensorFlow's estimators would read it too."""
    for mode in ("train", "eval", "print_config"):
        environment = {"TF_CONFIG": json.dumps(KUBEFLOW), "OTHER": ""}
        cluster = read_cluster(namespace(mode, cluster_timeout=7), environment)
        assert environment == {"OTHER": ""}
        if mode == "print_config":
            assert cluster is None
        else:
            assert cluster.timeout_seconds == 7


def test_one_host_is_no_cluster():
    alone = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
    assert read_cluster(namespace(), {"TF_CONFIG": json.dumps(alone)}) is None
    assert read_cluster(namespace(cluster=["a:1"], task=0), {}) is None
    assert read_cluster(namespace(), {"TF_CONFIG": ""}) is None
    assert read_cluster(namespace(), {}) is None


def test_who_is_idle():
    worker = tf_config()
    chief = Cluster(worker.hosts, worker.chief)
    assert is_idle(worker, "predict")
    assert not is_idle(chief, "predict")
    assert not is_idle(worker, "train")
    assert not is_idle(None, "predict")
    assert (log_suffix(worker), log_suffix(chief), log_suffix(None)) == (".worker1", "", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", 'TF_CONFIG must be JSON; got "{" (Expecting property name'),
        ("[]", "TF_CONFIG must be a JSON object; got []. Correct it."),
        ('{"task": {}}', 'TF_CONFIG must have the key cluster; got {"task": {}}. Write {"clus'),
        ({"task": {"index": 0}}, 'TF_CONFIG must have the key task.type; got {"index": 0}. '),
        ({"task": 3}, "TF_CONFIG must have an object in task; got 3. Correct it."),
        ({"task": {"type": 3}}, "TF_CONFIG must have a text in task.type; got 3. Correct it."),
        (
            {"task": {"type": "evaluator", "index": 0}},
            "TF_CONFIG must have a task.type that its cluster lists, chief or worker; got "
            '"evaluator". A mesh has no parameter servers; evaluation is a job of its own',
        ),
        (
            {"task": {"type": "worker", "index": 2}},
            "TF_CONFIG must have a task.index from 0 to 1 for worker; got 2. Give every host",
        ),
        ({"task": {"type": "worker"}}, "a task.index from 0 to 1 for worker; got null. "),
        ({"task": {"type": "worker", "index": True}}, "from 0 to 1 for worker; got true. "),
        (
            {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}},
            'TF_CONFIG must have jobs named chief (or master) and worker only; got "ps". A mesh',
        ),
        ({"cluster": {"worker": "a:1"}}, 'a list of hosts in cluster.worker; got "a:1". '),
        (
            {"cluster": {"chief": ["a:1", "b:1"]}},
            "TF_CONFIG must have one chief; got chief 0 (a:1), chief 1 (b:1). List the others",
        ),
        ({"cluster": {}}, "TF_CONFIG must name at least one host; got none. Unset it."),
        (
            {"cluster": {"worker": ["a"]}},
            'TF_CONFIG cluster must list hosts as HOST:PORT; got "a". Write for instance 10.0.',
        ),
        ({"cluster": {"worker": [7]}}, "TF_CONFIG cluster must list hosts as HOST:PORT; got 7."),
        (
            {"cluster": {"chief": ["a:1"], "worker": ["a:1"]}},
            "TF_CONFIG cluster must name each host once; got a:1 twice. Several processes on one",
        ),
    ],
)
def test_a_wrong_variable(text, message):
    text = text if isinstance(text, str) else json.dumps(KUBEFLOW | text)
    with pytest.raises(ValueError, match=re.escape(message)):
        cluster_from_tf_config(text, 300)


@pytest.mark.parametrize(
    ("words", "task", "message"),
    [
        (["a:1", "b:0"], 0, '--cluster must list hosts as HOST:PORT; got "b:0". '),
        (["a:1", "b:65536"], 0, '--cluster must list hosts as HOST:PORT; got "b:65536". '),
        (["http://a:1"], 0, '--cluster must list hosts as HOST:PORT; got "http://a:1". '),
        ([","], 0, "--cluster must name at least one host; got none. Write HOST:PORT."),
        (["a:1", "a:1"], 0, "--cluster must name each host once; got a:1 twice. "),
        (
            ["a:1", "b:1"],
            2,
            "--task must be the number of a host in --cluster, 0 to 1; got 2. Give every host",
        ),
    ],
)
def test_wrong_flags(words, task, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        cluster_from_flags(words, task, 300)


def test_flags_beside_the_variable():
    with pytest.raises(ValueError, match=r"--cluster must not be combined with the variable"):
        read_cluster(namespace(cluster=["a:1"], task=0), {"TF_CONFIG": json.dumps(KUBEFLOW)})
    with pytest.raises(ValueError, match=r"--cluster_timeout must come with --cluster or TF_C"):
        read_cluster(namespace(cluster_timeout=3), {})


# ---- devices -----------------------------------------------------------------------------------


def test_a_mesh_over_hosts():
    config = make_config(mesh_shape="x:3,y:2", layout="batch:x,embd:y", train_batch_size=3)
    fit = place_training(config, cpus(2), tf_config())
    assert fit.devices == tf_config().devices(cpus(2))
    assert len(fit.devices) == 6
    with pytest.raises(ValueError) as caught:
        place_training(config, (), tf_config())
    assert str(caught.value) == (
        "mesh_shape must have as many processors as there are devices; got x:3,y:2 = 6 on 3 "
        "hosts with 1 each (the CPU). Add --fit_mesh to fit the mesh to the devices, or change "
        "the hosts or the devices that --gpu_ids names on every host."
    )


def test_all_that_names_no_host_is_on_the_chief(tmp_path):
    """Above all the weights that the saver writes to the chief's disk."""
    config = make_config(model_path=str(tmp_path))
    devices = ("/job:chief/task:0/device:GPU:0", "/job:worker/task:0/device:GPU:0")

    def model_fn(features, labels, mode, params):
        raise NotImplementedError

    run_config = make_estimator(config, model_fn, devices, "grpc://a:1").config
    assert run_config.master == "grpc://a:1"
    with tf.Graph().as_default() as graph, graph.device(run_config.device_fn):
        nowhere = tf.constant(1)
        with tf.device("cpu:0"):  # where Mesh TensorFlow puts the whole weights
            host = tf.constant(1)
        with tf.device(devices[1]):
            elsewhere = tf.constant(1)
    assert nowhere.device == host.device == "/job:chief/task:0/device:CPU:0"
    assert elsewhere.device == devices[1]
    assert make_estimator(config, model_fn, ("",)).config.device_fn is None
