"""docker-compose.yml without Docker: it fits the schema of Compose, its variables resolve, what it names exists; no secret."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from runtime import settings

ROOT = Path(__file__).parents[2]
FILLED = {"ESCROW_ID_KEYS": "ab" * 32, "GRAFANA_ADMIN_USER": "ada", "GRAFANA_ADMIN_PASSWORD": "of-my-own"}
_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?::(?P<sign>[-?])(?P<rest>[^}]*))?\})")


class Unset(Exception):
    """A variable that must be set is not."""


def interpolated(value: Any, environ: dict[str, str]) -> Any:
    """The file as Compose reads it: ${A}, ${A:-default}, ${A:?message}, $$."""
    if isinstance(value, dict):
        return {key: interpolated(each, environ) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, environ) for each in value]
    if not isinstance(value, str):
        return value

    def replace(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        given = environ.get(found["name"], "")
        if not given and found["sign"] == "?":
            raise Unset(f"{found['name']}: {found['rest']}")
        return given or (found["rest"] or "" if found["sign"] == "-" else "")

    text = _VARIABLE.sub(replace, value)
    assert "${" not in text, f"a form of variable that is not known here: {text}"
    return text


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return content


@pytest.fixture(scope="module")
def compose(written: dict[str, Any]) -> dict[str, Any]:
    resolved: dict[str, Any] = interpolated({key: value for key, value in written.items() if not key.startswith("x-")}, FILLED)
    return resolved


def test_it_fits_the_schema_of_compose(compose: dict[str, Any]) -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema_rs.validator_for(schema).validate(compose)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validator_for(schema).validate({**compose, "servces": {}})


def test_every_service_that_is_wanted_is_there_with_what_it_waits_for(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"kafka", "escrow", "prometheus", "grafana"} <= set(services)
    assert "HEALTHCHECK" in (ROOT / "Dockerfile").read_text()
    healthy = {name for name, service in services.items() if "test" in service.get("healthcheck", {})} | {"escrow"}
    assert {"kafka", "escrow", "prometheus", "grafana"} == healthy
    for service in services.values():
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert needed in healthy
            else:
                assert how["condition"] == "service_completed_successfully"
                assert services[needed]["restart"] == "no"


EXACT = re.compile(r"[a-z/-]+:v?\d+\.\d+\.\d+(-[a-z0-9-]+)?(@sha256:[0-9a-f]{64})?")


@pytest.mark.parametrize("image", ["kafka", "a/kafka:latest", "python:3.12-slim-bookworm", "grafana:12.1", "x:1.2.3@sha256:ab"])
def test_a_tag_that_floats_is_not_exact(image: str) -> None:
    assert not EXACT.fullmatch(image)


def _bases() -> dict[str, str]:
    """Images that the Dockerfile builds from, by the argument that sets another one."""
    return dict(re.findall(r"(?m)^ARG (\w+_IMAGE)=(\S+)$", (ROOT / "Dockerfile").read_text()))


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    text, bases = (ROOT / "Dockerfile").read_text(), _bases()
    assert set(re.findall(r"(?m)^FROM (\S+)", text)) == {f"${{{name}}}" for name in bases}
    bought = [service["image"] for service in compose["services"].values() if "build" not in service]
    assert (len(bases), len(bought)) == (2, 3)
    for image in [*bases.values(), *bought]:
        assert EXACT.fullmatch(image), f"{image}: not an exact tag"
    assert compose["services"]["escrow"]["build"]["args"] == bases


def test_every_image_can_be_set_to_a_digest(written: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that scripts/image_digests.sh writes for .env are used, for every image. Docker is a script here."""
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nprintf "sha256:%s" "$(printf %s "$4" | sha256sum | cut -c1-64)"\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    done = subprocess.run(["sh", "scripts/image_digests.sh"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = dict(line.split("=", 1) for line in done.stdout.splitlines())
    services = interpolated(written["services"], {**FILLED, **lines})
    used = [service["image"] for service in services.values() if "build" not in service]
    used += services["escrow"]["build"]["args"].values()
    assert sorted(used) == sorted(lines.values())
    assert all(EXACT.fullmatch(image) and "@sha256:" in image for image in used)


def test_what_it_mounts_and_builds_from_exists(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for mount in service.get("volumes", []):
            source, target, *_ = mount.split(":")
            assert target.startswith("/")
            if source.startswith("."):
                assert (ROOT / source).is_dir(), source
                assert mount.endswith(":ro"), f"{mount}: files of the repository are not for containers to write"
            else:
                assert source in compose["volumes"]
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
    used = {mount.split(":")[0] for service in compose["services"].values() for mount in service.get("volumes", [])}
    assert set(compose["volumes"]) <= used


def test_the_dockerfile_copies_what_exists_and_what_is_not_ignored() -> None:
    text = (ROOT / "Dockerfile").read_text()
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for line in re.findall(r"(?m)^COPY (?!--from)(.*)$", text):
        for source in shlex.split(line)[:-1]:
            assert (ROOT / source).exists(), source
            assert source == "." or source.split("/")[0] in allowed, f"{source}: .dockerignore keeps it out"
    assert re.search(r"(?m)^USER (?!0|root)", text)
    packaged = re.search(r"(?m)^include = \[(.*)\]", (ROOT / "pyproject.toml").read_text())
    assert packaged is not None
    assert set(re.findall(r'"(\w+)\*"', packaged[1])) <= set(allowed)


def test_settings_of_escrow_are_settings(compose: dict[str, Any]) -> None:
    for name in ("escrow", "token"):
        environ = compose["services"][name]["environment"]
        found = settings.load(None, (), environ)
        assert found.mode == "kafka"
        assert found.id_keys == FILLED["ESCROW_ID_KEYS"]
    assert compose["services"]["escrow"]["ports"] == [f"127.0.0.1:7480:{found.listen_port}"]


def test_nothing_has_a_default_secret_and_everything_is_published_on_loopback(written: dict[str, Any]) -> None:
    services = {key: value for key, value in written.items() if not key.startswith("x-")}
    for name in FILLED:
        with pytest.raises(Unset, match=name):
            interpolated(services, {key: value for key, value in FILLED.items() if key != name})
    for service in written["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        for variable, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|TOKEN|ID_KEYS", variable):
                assert re.fullmatch(r"\$\{\w+:\?.+\}", value), f"{variable}: must be required"


def test_the_example_of_the_environment_names_every_variable_and_sets_no_secret(written: dict[str, Any]) -> None:
    text = (ROOT / ".env.example").read_text()
    wanted = {found["name"] for found in _VARIABLE.finditer((ROOT / "docker-compose.yml").read_text()) if found["name"]}
    shown = dict(re.findall(r"(?m)^#?([A-Z_]+)=(.*)$", text))
    assert set(shown) == wanted
    assert all(shown[name] == "" for name in FILLED)
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_prometheus_and_grafana_are_told_of_files_that_are_mounted(compose: dict[str, Any]) -> None:
    prometheus = compose["services"]["prometheus"]
    config = next(word.partition("=")[2] for word in prometheus["command"] if word.startswith("--config.file="))
    file = ROOT / "conf/prometheus" / Path(config).name
    content, usual = yaml.safe_load(file.read_text()), yaml.safe_load((ROOT / "conf/prometheus/prometheus.yml").read_text())
    assert all((file.parent / rules).is_file() for rules in content["rule_files"])
    for job in content["scrape_configs"]:
        assert job.pop("authorization")["credentials_file"].startswith("/run/escrow/")
    assert content == usual, "compose.yml is prometheus.yml with a token"
    providers = yaml.safe_load((ROOT / "conf/grafana/provisioning/dashboards/escrow.yml").read_text())["providers"]
    mounted = [mount.split(":")[1] for mount in compose["services"]["grafana"]["volumes"]]
    assert all(provider["options"]["path"] in mounted for provider in providers)
