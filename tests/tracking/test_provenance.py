"""The files of which a run was made."""

from tracking import provenance


def test_sources_of_earlier_records_are_none_of_the_project(tmp_path, monkeypatch):
    for name in ("main.py", "models/gpt.py", "experiments/_sources/main_7.py", "tests/test_a.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    names = [name for name, _ in provenance.experiment_info("tiny")["sources"]]
    assert names == ["main.py", "models/gpt.py"]
