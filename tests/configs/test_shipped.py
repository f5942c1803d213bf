"""The shipped configs load, are clean, and are what their names say."""

import json

import pytest

from configs.files import PACKAGE_FOLDER, shipped_configs
from configs.load import load_config
from scripts.generate_docs import config_reference, flag_reference
from utils.command_line import DEFAULT_STEPS_PER_CHECKPOINT

# Brown et al. 2020, table 2.1: layers, width, batch in tokens, learning rate. The heads of XL
# are 16 here, since its 24 heads of 128 features do not make a width of 2,048.
GPT3_SIZES = {
    "gpt3_small_125M": (12, 768, 12, 0.5e6, 6e-4),
    "gpt3_medium_350M": (24, 1024, 16, 0.5e6, 3e-4),
    "gpt3_large_760M": (24, 1536, 16, 0.5e6, 2.5e-4),
    "gpt3_XL_1.3B": (24, 2048, 16, 1e6, 2e-4),
    "gpt3_2.7B": (32, 2560, 32, 1e6, 1.6e-4),
    "gpt3_6.7B": (32, 4096, 32, 2e6, 1.2e-4),
    "gpt3_13B": (40, 5120, 40, 2e6, 1e-4),
}


@pytest.mark.parametrize("name", shipped_configs())
def test_every_shipped_config_loads_without_a_warning(name):
    config = load_config(name, steps_per_checkpoint=DEFAULT_STEPS_PER_CHECKPOINT)
    assert config.warnings == ()
    assert len(config.attention_layers) == config.n_layer
    assert load_config(f"{name}.json") == load_config(str(PACKAGE_FOLDER / f"{name}.json"))


def test_the_shipped_configs_are_these():
    own = {"tiny", "gpt2_small", "gpt_neo_xl_256", "gptj_6B"}
    assert set(shipped_configs()) == {*own, *GPT3_SIZES}


@pytest.mark.parametrize("name", GPT3_SIZES)
def test_gpt3_family(name):
    layers, width, heads, batch_tokens, lr = GPT3_SIZES[name]
    config = load_config(name)
    assert (config.n_layer, config.n_embd, config.n_head) == (layers, width, heads)
    assert (config.n_ctx, config.lr) == (2048, lr)
    assert config.train_batch_size * config.n_ctx == pytest.approx(batch_tokens, rel=0.05)
    parameters = 12 * layers * width**2 + config.n_vocab * width
    written = name.rsplit("_", 1)[1]
    size = float(written[:-1]) * {"M": 1e6, "B": 1e9}[written[-1]]
    assert parameters == pytest.approx(size, rel=0.05)


def test_gptj():
    config = load_config("gptj_6B")
    assert (config.n_layer, config.n_embd, config.n_head, config.n_ctx) == (28, 4096, 16, 2048)
    assert (config.n_vocab, config.token_count, config.rotary_features) == (50400, 50257, 64)
    assert (config.warmup_steps, config.anneal_steps) == (3000, 300000)
    assert (config.lr, config.end_lr, config.weight_decay) == (1.2e-4, 1.2e-5, 0.1)
    assert config.train_batch_size * config.n_ctx == 2**20


def test_the_xl_example():
    config = load_config("gpt_neo_xl_256")
    assert (config.n_layer, config.n_embd, config.n_head) == (24, 2048, 32)
    assert (config.mesh_shape, config.layout) == (
        "x:128,y:2",
        "batch:x,memory_length:y,embd:y",
    )
    assert (config.mesh_size, config.lr_decay, config.weight_decay) == (256, "cosine", 0.1)
    assert (config.embed_dropout, config.attn_dropout, config.res_dropout) == (0.1, 0.1, 0.1)
    assert (config.train_batch_size, set(config.attention_layers)) == (512, {"global"})


@pytest.mark.parametrize(
    "path", sorted((PACKAGE_FOLDER / "dataset_configs").glob("*.json")), ids=lambda path: path.stem
)
def test_every_shipped_dataset_loads(path):
    values = json.loads(path.read_text())
    config = load_config("tiny", [f'datasets=["{path.stem}"]'])
    assert config.dataset.id == path.stem
    assert config.sources[0].train_glob == values["path"]
    assert config.dataset.tokenizer_is_pretrained
    assert (config.dataset.tokenizer_path, config.eos_id) == ("gpt2", 50256)


@pytest.mark.parametrize(
    ("name", "text"), [("config_reference.md", config_reference), ("flags.md", flag_reference)]
)
def test_generated_references_are_fresh(name, text):
    written = (PACKAGE_FOLDER.parent / "docs" / name).read_text(encoding="utf-8")
    assert written == text(), f"docs/{name} is stale; run python scripts/generate_docs.py"
