"""The set-up finds a Python that runs, and says so if there is none."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def find(repo_root, tmp_path):
    """Runs the search with the given programs as the whole path, and gives the process."""
    lines = (repo_root / "scripts" / "environment.sh").read_text().splitlines()
    end = lines.index("make_venv || exit 1")
    functions = tmp_path / "functions.sh"
    functions.write_text("\n".join(lines[:end]))
    programs = tmp_path / "programs"
    programs.mkdir()

    def run(scripts, **environment):
        for name, script in scripts.items():
            (programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (programs / name).chmod(0o755)
        os.symlink("/usr/bin/dirname", programs / "dirname")
        return subprocess.run(
            ["/bin/bash", "-c", f"set -euo pipefail; source {functions}; find_python"],
            env={"PATH": str(programs), "HOME": str(tmp_path), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    return run


WORKING = f'exec "{sys.executable}" "$@"'


def test_python_that_does_not_run_is_skipped(find):
    done = find({"python3.11": "echo no such version >&2; exit 127", "python3.10": WORKING})
    assert (done.returncode, done.stdout, done.stderr) == (0, "python3.10\n", "")


def test_named_python_comes_first(find, tmp_path):
    done = find({"python3.11": WORKING, "mine": WORKING}, PYTHON=str(tmp_path / "programs/mine"))
    assert done.stdout == f"{tmp_path}/programs/mine\n"


def test_named_python_that_does_not_run_is_an_error(find):
    done = find({"python3.11": WORKING}, PYTHON="/none/python")
    assert done.returncode == 1
    assert "PYTHON must be a working Python 3.9, 3.10 or 3.11" in done.stderr
    assert "got /none/python" in done.stderr


def test_no_python_names_what_to_install(find):
    done = find({"python3": "exit 1"})
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "apt install python3.11 python3.11-venv" in done.stderr


def test_failed_install_is_done_again(repo_root, tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    script = (repo_root / "scripts" / "environment.sh").read_text()
    (tmp_path / "scripts" / "environment.sh").write_text(script)
    (tmp_path / "requirements.txt").write_text("nothing==1\n")
    python = tmp_path / ".venv" / "bin" / "python"
    log = tmp_path / "log"

    def source(pip_exit_code):
        python.write_text(
            "#!/bin/sh\n"
            f'if [ "$2" = pip ]; then echo x >>{log}; exit {pip_exit_code}; fi\n{WORKING}\n'
        )
        python.chmod(0o755)
        command = f"set -euo pipefail; source {tmp_path}/scripts/environment.sh; pwd"
        return subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True)

    assert source(pip_exit_code=1).returncode == 1
    assert source(pip_exit_code=0).stdout.strip() == str(tmp_path)
    assert source(pip_exit_code=0).returncode == 0
    assert log.read_text() == "x\nx\n"  # the third time nothing was left to install
