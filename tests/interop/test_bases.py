"""A run that begins from a checkpoint: with its optimizer it goes on as the base would have."""

import numpy as np
import pytest

from interop.bases import open_base
from tests.support import make_config, random_batches, train

BATCHES = random_batches(make_config(), 4)
OPTIMIZERS = {
    "adam": {"opt_name": "adam", "adam_bias_correction": True},
    "adafactor": {"opt_name": "adafactor", "beta1": 0.9},
}


def run_config(folder, **keys):
    return make_config(model_path=str(folder), weight_decay=0.1, gradient_clipping=1.0, **keys)


@pytest.fixture(scope="module", params=OPTIMIZERS.values(), ids=OPTIMIZERS)
def base(request, tmp_path_factory):
    """(keys of the optimizer, folder with a checkpoint after 3 updates, the run after 4)."""
    folder = tmp_path_factory.mktemp("bases") / "base"
    before = train(run_config(folder, **request.param), BATCHES[:3])
    after = train(run_config(folder, **request.param), BATCHES[3:])
    return request.param, before.checkpoint, after


@pytest.fixture(scope="module")
def kept(base, tmp_path_factory):
    """(config, run) of one update with the base's optimizer."""
    keys, checkpoint, _ = base
    folder = tmp_path_factory.mktemp("bases") / "tuned"
    opened = open_base(run_config(folder, init_from=checkpoint, **keys))
    return opened.config, train(opened.config, BATCHES[3:], scaffold_fn=opened.scaffold)


def test_a_kept_optimizer_makes_the_update_that_the_base_would_have_made(base, kept):
    expected, (config, got) = base[2], kept
    assert config.earlier_updates == 3
    assert got.variables["global_step"] == 1
    names = expected.variables.keys() - {"global_step"}
    assert got.variables.keys() - {"global_step"} == names
    assert len(names) > 60
    for name in names:
        assert np.array_equal(got.variables[name], expected.variables[name]), name


def test_updates_of_a_base_of_a_base_count(base, kept, tmp_path):
    config, got = kept
    with open(f"{config.model_path}/config.json", "w") as file:
        file.write(config.model_dump_json())
    second = open_base(run_config(tmp_path, init_from=got.checkpoint, **base[0]))
    assert second.config.earlier_updates == 3 + 1


def test_a_step_that_is_not_there(base, tmp_path):
    folder = base[1].rpartition("/")[0]
    config = run_config(tmp_path, init_from=f"{folder}/model.ckpt-777", **base[0])
    with pytest.raises(ValueError, match=r"got .*model\.ckpt-777, and of the steps in .* there"):
        open_base(config)


def test_another_optimizer_is_refused(base, tmp_path):
    keys, checkpoint, _ = base
    [other] = OPTIMIZERS.keys() - {keys["opt_name"]}
    config = run_config(tmp_path, init_from=checkpoint, opt_name=other)
    with pytest.raises(ValueError, match=f"got opt_name {other}, and .* trained with .*fresh_opt"):
        open_base(config)


def test_updates_that_are_named_must_be_those_of_the_base(base, tmp_path):
    keys, checkpoint, _ = base
    config = run_config(tmp_path, init_from=checkpoint, earlier_updates=7, **keys)
    with pytest.raises(ValueError, match=r"earlier_updates must be 3.*got 7"):
        open_base(config)


def test_every_other_name_and_shape_is_named(base, tmp_path):
    keys, checkpoint, _ = base
    changed = {"n_layer": 3, "attention_types": [[["global"], 3]], "n_vocab": 26}
    config = run_config(tmp_path, init_from=checkpoint, fresh_opt=True, **keys | changed)
    with pytest.raises(ValueError) as error:
        train(config, [], scaffold_fn=open_base(config).scaffold)
    text = str(error.value)
    assert "gpt2/wte [22, 14] in place of [26, 14]" in text
    assert "13 missing: gpt2/h2/norm_1/g, " in text
    assert checkpoint in text
