"""docker-compose.yml, through Compose's own parser, and what its containers run."""

import json
import os
import re
import subprocess

import pymongo
import pytest
import yaml
from pymongo.errors import OperationFailure

from tests.tracking.services import DATABASE, OMNIBOARD, PASSWORD, ROOT


def variables():
    """Names that .env.example leaves to be filled in."""
    return re.findall(r"^(\w+)=$", (ROOT / ".env.example").read_text(), re.MULTILINE)


def parse(folder, values):
    """Runs the parser with an .env file."""
    for name in ("docker-compose.yml", "tools"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    environment = {name: text for name, text in os.environ.items() if name not in variables()}
    return subprocess.run(
        ["docker-compose", "--project-directory", str(folder), "config"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def services(tmp_path):
    result = parse(tmp_path, {name: name.lower() for name in variables()})
    assert result.returncode == 0, result.stderr
    return yaml.safe_load(result.stdout)["services"]


def test_every_password_must_be_set(tmp_path):
    assert len(variables()) == 5
    for missing in variables():
        result = parse(tmp_path, {name: "x" for name in variables() if name != missing})
        assert result.returncode != 0
        assert "set it in .env" in result.stderr


def test_nothing_is_reached_from_elsewhere(services):
    ports = [str(port) for service in services.values() for port in service["ports"]]
    assert len(ports) == 2
    assert all(re.search(r"127\.0\.0\.1", port) for port in ports)
    assert any("8081" in port for port in ports)  # where users of GPT-Neo look


def test_every_service_is_watched_and_comes_back(services):
    for service in services.values():
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"


def test_both_services_speak_of_the_same_user(services):
    password = services["mongo"]["environment"]["VIEWER_PASSWORD"]
    assert f"//viewer:{password}@mongo:27017/" in services["omniboard"]["environment"]["MONGO_URI"]


def test_the_image_runs_the_omniboard_of_the_tests():
    text = (ROOT / "tools/omniboard/Dockerfile").read_text()
    assert "npm ci " in text
    [command] = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    start = OMNIBOARD.relative_to(ROOT / "tools/omniboard")
    assert json.loads(command) == ["node", str(start)]


def test_the_users_that_the_script_makes_may_write_runs_and_nothing_else(server):
    script = (
        "const made = [];"
        "global.db = {getSiblingDB: name => ({createUser: user => made.push([name, user])})};"
        f"require({json.dumps(str(ROOT / 'tools/mongo/users.js'))});"
        "console.log(JSON.stringify(made));"
    )
    passwords = {"TRAINER_PASSWORD": PASSWORD, "VIEWER_PASSWORD": "another"}
    made = subprocess.run(
        ["node", "-e", script], env=os.environ | passwords, capture_output=True, check=True
    ).stdout
    with server.root() as client:
        client[DATABASE].command("dropAllUsersFromDatabase")  # the fixture's, which is made again
        for database, user in json.loads(made):
            words = {"pwd": user["pwd"], "roles": user["roles"]}
            client[database].command("createUser", user["user"], **words)
    for user, password in (("trainer", PASSWORD), ("viewer", "another")):
        url = f"mongodb://{user}:{password}@127.0.0.1:{server.port}/?authSource={DATABASE}"
        with pymongo.MongoClient(url) as client:
            client[DATABASE]["notes"].insert_one({"by": user})
            with pytest.raises(OperationFailure):
                client["admin"]["notes"].find_one()
