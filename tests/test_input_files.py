"""Record files that are not what their names say."""

import pytest

from configs.load import parse_config
from inputs import open_sources


def config_for(pattern):
    """The smallest config whose training data is ``pattern``."""
    return parse_config(
        {
            "n_layer": 1,
            "n_embd": 6,
            "n_head": 2,
            "n_ctx": 5,
            "n_vocab": 13,
            "eos_id": 0,
            "padding_id": 0,
            "train_batch_size": 1,
            "train_steps": 1,
            "model_path": "runs/none",
            "datasets": [[str(pattern), "", 1, None, 1.0]],
        }
    )


def test_an_empty_file_that_claims_records_is_refused(tmp_path):
    (tmp_path / "lie_0_20.tfrecords").write_bytes(b"")
    with pytest.raises(ValueError, match=r"must hold as many records as its name says; got 0 inst"):
        open_sources(config_for(tmp_path / "*.tfrecords"), training=True)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "dir_0_20.tfrecords").mkdir()
    with pytest.raises(ValueError, match=r"record file must exist and be whole; got .*dir_0_20"):
        open_sources(config_for(tmp_path / "*.tfrecords"), training=True)
