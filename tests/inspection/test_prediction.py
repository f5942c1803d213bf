"""What small models tell about large ones."""

import pytest

from inspection.measure import measure
from inspection.prediction import layer_kinds, predict_need, with_layers
from tests.support import make_config


def needs_of_the_whole(config):
    run = measure(config)
    return (
        run.peak_bytes,
        sum(item.sent_bytes for item in run.communication),
        run.flops.per_processor,
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"n_layer": 7, "attention_types": [[["global"], 7]]},
        # Kinds in unequal numbers, on a mesh, so that something is sent.
        {
            "n_layer": 5,
            "attention_types": [[["global", "none", "global", "local", "global"], 1]],
            "mesh_shape": "x:2,y:2",
            "layout": "batch:x,heads:y",
        },
        {"n_layer": 1, "attention_types": [[["global"], 1]]},
    ],
)
def test_a_prediction_is_what_the_whole_model_needs(keys):
    config = make_config(weight_decay=0.0, **keys)
    predicted, whole = predict_need(config), needs_of_the_whole(config)
    assert predicted.sent_bytes == pytest.approx(whole[1], rel=1e-3)
    assert predicted.flops == whole[2]
    assert predicted.peak_bytes == pytest.approx(whole[0], rel=0.02)


def test_other_layers_leave_the_rest_of_the_config():
    config = make_config(n_layer=6, attention_types=[[["global", "local", "none"], 2]])
    kinds = layer_kinds(config)
    other = with_layers(config, [kinds[2], kinds[1]])
    assert other.attention_layers == ("none", "local")
    same = with_layers(other, kinds)
    assert (same.n_layer, same.attention_layers) == (6, config.attention_layers)
    assert same.to_json_dict() | {"attention_types": None} == (
        config.to_json_dict() | {"attention_types": None}
    )
