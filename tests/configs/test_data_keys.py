"""Special ids without a dataset config: asked for only where they are used."""

import pytest

from configs.load import ConfigError, parse_config

SMALL = {
    "model_path": "runs/none",
    "n_layer": 1,
    "n_embd": 6,
    "n_head": 2,
    "n_ctx": 5,
    "n_vocab": 13,
    "train_batch_size": 1,
    "train_steps": 1,
    "datasets": [["train_*.tfrecords", "", 1, None, 1.0]],
}
DATASET = {"n_vocab": 13, "path": "a_*.tfrecords", "tokenizer_path": "own.json", "eos_id": 4}


def test_chunks_of_a_small_vocabulary_need_no_special_ids():
    config = parse_config(SMALL)
    assert config.warnings == ()
    written = config.to_json_dict()
    assert not {"eos_id", "padding_id"} & written.keys()  # ids that the vocabulary has not
    assert parse_config(written) == config
    assert parse_config(SMALL | {"datasets": []}).warnings == ()


@pytest.mark.parametrize(
    "use", [{"input_fn": "generic_text"}, {"predict_steps": 1}, {"eval_tasks": ["piqa"]}]
)
def test_the_end_of_a_document_is_asked_for_where_it_is_used(use):
    with pytest.raises(ConfigError) as caught:
        parse_config(SMALL | use)
    [line] = caught.value.problems
    assert line == (
        "eos_id: is required with input_fn generic_text, predict_steps or eval_tasks, and a "
        "vocabulary of 13 has no 50256 (got null); add the id that ends a document"
    )
    config = parse_config(SMALL | use | {"eos_id": 3})
    assert (config.eos_id, config.padding_id) == (3, 3)
    assert parse_config(config.to_json_dict()) == config


def test_a_given_id_must_be_in_the_vocabulary():
    with pytest.raises(ConfigError, match="eos_id: must be below n_vocab 13"):
        parse_config(SMALL | {"eos_id": 13})
    with pytest.raises(ConfigError, match="eos_id: must be below n_vocab 13"):
        parse_config(SMALL | {"datasets": [DATASET | {"eos_id": 13}]})


def test_special_ids_come_from_the_first_dataset_config_wherever_it_stands():
    config = parse_config(SMALL | {"datasets": [SMALL["datasets"][0], DATASET]})
    assert (config.eos_id, config.padding_id) == (4, 4)


@pytest.mark.parametrize(
    ("weights", "got"), [((1e308, 1e308), r"1e\+308 for a_.* of inf"), ((1e300, 1e-300), "1e-300")]
)
def test_weights_must_be_shares(weights, got):
    datasets = [[DATASET, None, None, weight] for weight in weights]
    with pytest.raises(ConfigError, match=rf"datasets: must have weights .*got .*{got}.*; write"):
        parse_config(SMALL | {"datasets": datasets})


def test_weights_may_be_of_any_size_together():
    tiny = [[DATASET, None, None, weight] for weight in (5e-324, 1e-323)]
    assert [source.weight for source in parse_config(SMALL | {"datasets": tiny}).sources] == [
        5e-324,
        1e-323,
    ]
