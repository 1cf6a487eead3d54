"""Nobody there, no token, not enough rights, no server parts: each is said with what to do, and has an exit code of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from escrow import Api, NotAllowed
from escrow.cli import COMMANDS, build_parser
from escrow.cli.completion import places
from tests.support.endpoint import quiet_port, running, until
from tests.support.shell import ROOT

EVERY = [place.path for place in places(build_parser()) if place.path]


def test_nobody_there(alone):
    url = f"http://127.0.0.1:{quiet_port()}"
    error = alone.error("tx", "list", "--url", url, code=3)
    assert error.startswith(f"escrow: {url}: no connection")
    assert "escrow run" in error


def test_tokens(alone, tmp_path):
    with running(tmp_path / "data") as edge:
        url = f"http://127.0.0.1:{edge.port}"
        token = alone("token", "new", "ops", "--operator", "--data", edge.data).strip()
        mean = alone("token", "new", "mean", "--produce", "others", "--data", edge.data).strip()
        (tmp_path / "token").write_text(token + "\n")
        wanted = ("groups", "--url", url)

        def refused(code, **variables):
            return alone.error(*wanted, code=code, **variables)

        until(lambda: asks_for_a_token(url))
        assert "escrow token new" in refused(4)
        assert "401" in refused(4, ESCROW_TOKEN="escrow_aaaaaaaa_wrong")
        error = refused(4, ESCROW_TOKEN=mean)
        assert ("403" in error, "another role" in error, mean in error) == (True, True, False)
        assert alone(*wanted, "--token-file", "token") == "no producer group yet\n"
        assert alone(*wanted, ESCROW_TOKEN_FILE=str(tmp_path / "token"), ESCROW_TOKEN="ignored").startswith("no producer")
        (tmp_path / "empty").write_text("")
        assert "holds no token" in alone.error(*wanted, "--token-file", "empty")
        assert "No such file" in alone.error(*wanted, "--token-file", "nowhere")


def asks_for_a_token(url):
    """The edge reads its tokens again within a second."""
    try:
        with Api(url) as api:
            api.groups()
    except NotAllowed:
        return True
    return False


def test_what_is_no_escrow(alone):
    assert "not like http" in alone.error("groups", "--url", "nonsense")


@pytest.mark.parametrize("command", EVERY)
def test_help_of_each_command_on_a_base_install(command, capsys):
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([*command.split(), "--help"])
    assert ended.value.code == 0
    assert f"usage: escrow {command}" in capsys.readouterr().out


def test_every_command_has_examples_and_a_sentence(capsys):
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2].replace("_", "-")  # type: ignore[attr-defined]
        with pytest.raises(SystemExit):
            build_parser().parse_args([name, "--help"])
        assert "examples:" in capsys.readouterr().out, name


def test_commands_that_speak_http_need_no_server_parts(shell, name):
    """`python -S` knows no third-party package, and nothing that was installed."""

    environ = {**shell.environ, "PYTHONPATH": str(ROOT / "sdk")}

    def bare(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-m", "escrow", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=shell.cwd, env=environ, check=False)

    sent = bare("send", name, "hello")
    assert sent.returncode == 0, sent.stderr
    assert bare("consume", name).stdout == "hello\n"
    for command in (("tx", "list"), ("top", "--once"), ("completion", "bash")):
        done = bare(*command)
        assert done.returncode == 0, done.stderr
    without = bare("export", "x.parquet", "--data", "data")
    assert (without.returncode, "escrow-mq-server" in without.stderr) == (2, True)
    looked = bare("doctor", "--data", "data", "--set", "listenPort=0")
    assert (looked.returncode, "escrow-mq-server" in looked.stderr) == (2, True), looked.stderr
