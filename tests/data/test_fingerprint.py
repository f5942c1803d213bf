"""A run that goes on with other records than it has read says so, and no other does."""

import dataclasses
import gzip

import pytest

from data.fingerprint import fingerprints
from data.manifest import Counts, Manifest, TokenizerIdentity, write_manifest
from inputs import open_sources
from tests.input_support import EOS, LENGTH, N_CTX, config_of, numbered, write
from utils.stored_data import warn_of_other_data, write_stored_data

MANIFEST = Manifest(
    name="train",
    tokenizer=TokenizerIdentity("words.json", EOS, EOS, "a1"),
    mode="chunks",
    chunk_size=N_CTX,
    separator=(EOS,),
    options={"seed": 1},
    counts=Counts(6, 6, {}, 6, 6 * LENGTH, 6 * LENGTH, {}, 100),
    files={"train_0_6.tfrecords": 6},
)


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "tiny", "train", numbered(6))
    return tmp_path


def found(folder, **values):
    return fingerprints(open_sources(config_of(folder, **values), training=True))


def warnings(folder, caplog, **values):
    """What is said when the run goes on."""
    caplog.clear()
    warn_of_other_data(str(folder), found(folder, **values))
    messages = [record.message for record in caplog.records]
    return [message for message in messages if message.startswith("the records of ")]


def same_but_last(records):
    return [*records[:-1], records[-1] + 500]


@pytest.mark.parametrize(
    ("records", "changed"),
    [
        (numbered(6)[::-1], "first record"),  # as another seed shuffles them
        (numbered(7), "files, sizes"),
        (same_but_last(numbered(6)), "sizes"),
    ],
)
def test_records_made_again(folder, caplog, records, changed):
    write_stored_data(str(folder), found(folder))
    for path in (folder / "tiny").iterdir():
        path.unlink()
    write(folder / "tiny", "train", records)
    [message] = warnings(folder, caplog)
    assert message.startswith(
        f"the records of tiny are not those that the run has read (other {changed}): from here on"
    )


def test_a_manifest_tells_what_the_files_do_not(folder, caplog):
    write_manifest(MANIFEST, str(folder / "tiny"))
    write_stored_data(str(folder), found(folder))
    renamed = dataclasses.replace(MANIFEST.tokenizer, name="elsewhere/words.json")
    write_manifest(dataclasses.replace(MANIFEST, tokenizer=renamed), str(folder / "tiny"))
    assert not warnings(folder, caplog)
    write_manifest(dataclasses.replace(MANIFEST, options={"seed": 2}), str(folder / "tiny"))
    [message] = warnings(folder, caplog)
    assert "(other manifests)" in message


def test_the_same_records_are_no_news(folder, caplog):
    """Not in another order of files, with a manifest, elsewhere, or compressed."""
    write_stored_data(str(folder), found(folder))
    assert not warnings(folder, caplog, shuffle_input_filenames=True)
    write_manifest(MANIFEST, str(folder / "tiny"))
    assert not warnings(folder, caplog)
    moved = (folder / "tiny").rename(folder / "moved")
    entry = [f"{moved}/train_*.tfrecords", None, 1, None, 1.0]
    [fingerprint] = found(folder, datasets=[entry], eos_id=EOS).values()
    caplog.clear()
    warn_of_other_data(str(folder), {"tiny": fingerprint})
    assert not caplog.records
    [path] = moved.glob("*.tfrecords")
    (moved / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    entry[0] += ".gz"
    [fingerprint] = found(folder, datasets=[entry], eos_id=EOS).values()
    caplog.clear()
    warn_of_other_data(str(folder), {"tiny": fingerprint})
    assert not caplog.records


def test_a_run_that_kept_nothing_and_a_new_dataset(folder, caplog):
    assert not warnings(folder, caplog)
    write_stored_data(str(folder), {"other": {}})
    assert not warnings(folder, caplog)


@pytest.mark.parametrize("content", ["", "[]", '{"tiny": 1}', "{", "[" * 100_000])
def test_damage_is_named(folder, content):
    path = folder / "data.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"{path} must hold the fingerprints .*Restore"):
        warn_of_other_data(str(folder), found(folder))
