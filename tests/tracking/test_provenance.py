"""The files of which a run was made."""

from tracking import provenance


def test_files_of_runs_and_records_are_none_of_the_project(tmp_path, monkeypatch):
    packages = ("models", "models/kernels", "benchmarks")
    ours = ("main.py", "models/gpt.py", "models/kernels/loss.py")
    others = ("runs/_sources/main_7.py", "runs/7/task.py", "tests/test_a.py", "benchmarks/a.py")
    for name in (*ours, *others, *(f"{package}/__init__.py" for package in packages)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    names = [name for name, _ in provenance.experiment_info("tiny")["sources"]]
    assert set(names) == {*ours, "models/__init__.py", "models/kernels/__init__.py"}
