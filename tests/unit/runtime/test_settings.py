"""Settings: sources and their order, units, and errors that name the key, the place and the remedy."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from checker.policy import Policy
from escrow.cli import main
from runtime.settings import KEYS, MASK, Settings, SettingsError, load, template
from store.directory import Geometry

ROOT = Path(__file__).parents[3]


def loaded(*flags, file=None, **environ):
    return load(file, flags, environ)


def problems(*flags, file=None, **environ):
    with pytest.raises(SettingsError) as caught:
        load(file, flags, environ)
    return caught.value.problems


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """No conf/escrow.toml is found by chance."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESCROW_CONFIG", raising=False)


def toml(tmp_path, text):
    file = tmp_path / "my.toml"
    file.write_text(text)
    return file


# --- RocketMQ's settings (docs/configuration.md): every key, its unit, its default, and what it becomes ---
@pytest.mark.parametrize(
    ("key", "field", "default", "given", "becomes"),
    [
        ("transactionTimeOut", "transaction_timeout_ms", 6_000, "7000", 7_000),
        ("transactionTimeOut", "transaction_timeout_ms", 6_000, "10s", 10_000),
        ("transactionTimeOut", "transaction_timeout_ms", 6_000, "0", 0),
        ("transactionTimeOut", "transaction_timeout_ms", 6_000, "500", 500),
        ("transactionCheckInterval", "check_interval_ms", 30_000, "999", 999),
        ("checkTransactionMessageAtleastInterval", "check_at_least_interval_ms", 0, "1", 1),
        ("transactionCheckMax", "check_count_max", 15, "255", 255),
        ("transactionCheckInterval", "check_interval_ms", 30_000, "2m", 120_000),
        ("fileReservedTime", "retention_ms", 72 * 3_600_000, "48", 48 * 3_600_000),
        ("fileReservedTime", "retention_ms", 72 * 3_600_000, "90s", 90_000),
        ("checkTransactionMessageEnable", "checks_enabled", True, "false", False),
        ("checkTransactionMessageAtleastInterval", "check_at_least_interval_ms", 0, "60000", 60_000),
        ("rejectTransactionMessage", "reject_transactions", False, "true", True),
        ("role", "role", "master", "standby", "standby"),
        ("tranStateTableMapedFileSize", "state_table_file_bytes", 2_000_000 * 24, "2400", 2_400),
        ("tranRedoLogMapedFileSize", "redo_log_file_bytes", 2_000_000 * 20, "2000", 2_000),
    ],
)
def test_keys_of_rocketmq(key, field, default, given, becomes):
    assert getattr(loaded(), field) == default
    assert getattr(loaded(f"{key}={given}"), field) == becomes
    assert getattr(loaded(**{KEYS[key].variable: given}), field) == becomes


def test_policy_and_geometry_take_the_values():
    settings = loaded(
        "transactionTimeOut=6001", "transactionCheckMax=3", "transactionCheckInterval=10s", "fileReservedTime=2",
        "checkTransactionMessageEnable=false", "checkTransactionMessageAtleastInterval=60s", "role=standby",
        "outstandingPerGroupMax=7",
        "commitLogSegmentSize=1MiB", "maxBodySize=64KiB", "tranStateTableMapedFileSize=2400", "tranRedoLogMapedFileSize=2000",
        "logQueueEntriesPerFile=99", "topicQueueEntriesPerFile=98",
    )  # fmt: skip
    assert Policy.from_ms(**settings.policy_values()) == Policy(
        transaction_timeout_s=7, check_count_max=3, check_interval_s=10, retention_s=7200, checks_enabled=False, standby=True,
        check_at_least_interval_s=60, outstanding_per_group_max=7,
    )  # fmt: skip
    assert Geometry(**settings.geometry_values()) == Geometry(1 << 20, 100, 100, 99, 98)


def test_defaults_are_those_of_the_rooms():
    assert Policy.from_ms(**loaded().policy_values()) == Policy()
    assert Geometry(**loaded().geometry_values()) == Geometry()


# --- order of sources ---
def test_flags_beat_environment_beats_file_beats_default(tmp_path):
    file = toml(tmp_path, '# mine\ntransactionTimeOut = "7s"\ntransactionCheckMax = 7\nrole = "standby"\n')
    settings = loaded("transactionTimeOut=9s", file=file, ESCROW_TRANSACTION_TIME_OUT="8s", ESCROW_TRANSACTION_CHECK_MAX="8")
    assert (settings.transaction_timeout_ms, settings.check_count_max, settings.role) == (9_000, 8, "standby")
    origins = {key.name: str(origin) for key, _, origin in settings.effective()}
    assert origins["transactionTimeOut"] == "flag --set"
    assert origins["transactionCheckMax"] == "variable ESCROW_TRANSACTION_CHECK_MAX"
    assert origins["role"] == f"{file}:4"
    assert origins["queuesPerTopic"] == "default"


def test_the_file_is_found(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "escrow.toml").write_text("transactionCheckMax = 3\n")
    assert loaded().check_count_max == 3
    other = toml(tmp_path, "transactionCheckMax = 4\n")
    assert loaded(ESCROW_CONFIG=str(other)).check_count_max == 4
    assert loaded(file=toml(tmp_path, "transactionCheckMax = 5\n"), ESCROW_CONFIG="nowhere").check_count_max == 5


def test_places_are_absolute_and_under_the_data_directory(tmp_path):
    settings = loaded("dataDir=d")
    assert settings.store_dir == tmp_path / "d" / "store"
    assert settings.log_dir == tmp_path / "d" / "logs"
    assert settings.keys_file == tmp_path / "d" / "keys" / "ids.keys"
    assert loaded("logDir=elsewhere").log_dir == tmp_path / "elsewhere"


def test_arguments_give_another_process_the_same_settings(tmp_path):
    from runtime.settings import from_arguments

    file = toml(tmp_path, "transactionCheckMax = 5\n")
    settings = loaded("transactionTimeOut=9s", "dataDir=x", file=file)
    assert from_arguments(settings.arguments()) == settings


def test_settings_are_frozen():
    with pytest.raises(FrozenInstanceError):
        loaded().role = "standby"


# --- values ---
@pytest.mark.parametrize(
    ("value", "ms"), [("500ms", 500), ("6s", 6_000), ("0.5s", 500), ("1_000", 1_000), ("2 h", 7_200_000), ("1d", 86_400_000)]
)
def test_durations(value, ms):
    assert loaded(f"pollWaitMax={value}" if ms <= 600_000 else f"fileReservedTime={value}")
    field = "poll_wait_max_ms" if ms <= 600_000 else "retention_ms"
    assert getattr(loaded(f"{KEYS['pollWaitMax' if ms <= 600_000 else 'fileReservedTime'].name}={value}"), field) == ms


@pytest.mark.parametrize(("value", "size"), [("65536", 65_536), ("64KiB", 65_536), ("1.5MiB", 3 << 19), ("2GiB", 2 << 30)])
def test_sizes(value, size):
    assert loaded(f"commitLogSegmentSize={value}", "maxBodySize=1KiB").commit_log_segment_bytes == size


# --- what is wrong is named, with place and remedy ---
@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("transactionCheckMax=0", "less than 1.*between 1 and 255.*checkTransactionMessageEnable"),
        ("transactionCheckMax=256", "more than 255.*between 1 and 255"),
        ("transactionCheckMax=many", "'many' is not a whole number"),
        ("transactionTimeOut=6 fortnights", "unknown unit 'fortnights': units here are ms, s, m, h, d"),
        ("transactionTimeOut=6S", "did you mean 6s"),
        ("transactionTimeOut=-1", "cannot be read"),
        ("transactionTimeOut=1.5", "has no unit"),
        ("transactionTimeOut=64MiB", "unknown unit 'MiB'"),
        ("transactionCheckInterval=0", "less than 1ms"),
        ("fileReservedTime=0", "less than 1s"),
        ("maxBodySize=4MB", "unknown unit 'MB'.*MiB"),
        ("role=SLAVE", "SLAVE is standby"),
        ("checkTransactionMessageEnable=1", "neither true nor false"),
        ("tranStateTableMapedFileSize=1000000", "multiple of 24.*48000000"),
        ("tranRedoLogMapedFileSize=2001", "multiple of 20.*40000000"),
        ("listenPort=70000", "more than 65535"),
        ("queuesPerTopic=65", "between 1 and 64"),
        ("transactionTimeout=6s", "called transactionTimeOut here"),
        ("brokerRole=SLAVE", "called role here"),
        ("transactionChekMax=5", "did you mean transactionCheckMax"),
        ("somethingElse=5", "no such key: escrow config show lists the keys"),
        ("transactionTimeOut", "has no value: write --set transactionTimeOut=VALUE"),
        ("transactionTimeOut=72h", "reaches fileReservedTime.*lower transactionTimeOut or raise fileReservedTime"),
        ("checkTransactionMessageAtleastInterval=80h", "reaches fileReservedTime"),
        ("commitLogSegmentSize=1MiB", "maxBodySize .4MiB. does not fit.*lower it to"),
        ("restartBackoff=40s", "longer than restartBackoffMax"),
    ],
)
def test_wrong_flags(flag, says):
    (problem,) = problems(flag)
    assert problem.startswith("flag --set: ")
    assert re.search(says, problem), problem


@pytest.mark.parametrize("name", ["transactionTimeOut", "transactionCheckInterval", "checkTransactionMessageAtleastInterval"])
def test_a_bare_integer_below_a_second_is_legal_and_gets_a_warning(name, tmp_path, capsys):
    """It has RocketMQ's unit (docs/configuration.md). Whoever wrote 6 and meant seconds is told."""
    settings = loaded(f"{name}=6")
    assert getattr(settings, KEYS[name].field) == 6
    (warning,) = settings.warnings
    assert warning.startswith(f"flag --set: {name}: '6' is 6 milliseconds")
    assert 'write "6s" if seconds were meant, "6ms" if not' in warning
    for fine in ("6ms", "1000", "0.5s", "2h", *(["0"] if name != "transactionCheckInterval" else [])):
        assert loaded(f"{name}={fine}").warnings == ()
    file = toml(tmp_path, f"{name} = 500\n")
    for tool in ("check", "show"):
        assert main(["config", tool, "--config", str(file)]) == 0
        said = capsys.readouterr()
        assert f"escrow: warning: {file}:1: {name}: 500 is 500 milliseconds" in said.err
        assert "warning" not in said.out.partition("see the")[0]


def test_milliseconds_count_as_whole_seconds_rounded_up():
    policy = Policy.from_ms(**loaded("transactionTimeOut=500", "transactionCheckInterval=1", "fileReservedTime=2").policy_values())
    assert (policy.transaction_timeout_s, policy.check_interval_s) == (1, 1)


def test_wrong_line_of_the_file(tmp_path):
    file = toml(tmp_path, '\n\ntransactionCheckMax = 0\n"transactionTimeOut" = true\nrol = "master"\n[transaction]\nx = 1\n')
    found = problems(file=file)
    assert [problem.partition(": ")[0] for problem in found] == [f"{file}:5", f"{file}:6", f"{file}:3", f"{file}:4"]
    assert "did you mean role" in found[0]
    assert "keys stand at the top" in found[1]


def test_wrong_variable():
    assert problems(ESCROW_TRANSACTION_CHECK_MAX="x")[0].startswith("variable ESCROW_TRANSACTION_CHECK_MAX: transactionCheckMax: ")
    assert "did you mean ESCROW_TRANSACTION_TIME_OUT?" in problems(ESCROW_TRANSACTION_TIMEOUT="6s")[0]
    assert "no such setting" in problems(ESCROW_NONSENSE="1")[0]


def test_variables_that_are_not_ours_are_left_alone():
    loaded(ESCROW_FAILPOINT="redo.flush=kill", ESCROW_SERVICE_HOST="10.0.0.1", ESCROW_SERVICE_PORT="80", ESCROW_PORT="tcp://x:80",
           ESCROW_PORT_80_TCP_ADDR="10.0.0.1", ESCROW_EDGE_SERVICE_PORT_HTTP="80", PATH="/bin")  # fmt: skip


def test_all_problems_are_told_at_once():
    assert len(problems("transactionCheckMax=0", "queuesPerTopic=0", ESCROW_ROLE="x")) == 3


def test_unreadable_and_broken_files(tmp_path):
    assert "No such file" in problems(file=tmp_path / "none.toml")[0]
    assert "line 2" in problems(file=toml(tmp_path, "transactionCheckMax = 5\nrole = master\n"))[0]
    (tmp_path / "my.toml").write_bytes(b"role = '\xff'\n")
    assert "not valid TOML" in problems(file=tmp_path / "my.toml")[0]


def test_secrets_are_never_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ESCROW_ID_KEYS", "deadbeef" * 8)
    assert main(["config", "show"]) == 0
    assert main(["config", "show", "--json"]) == 0
    said = capsys.readouterr()
    assert "deadbeef" not in said.out + said.err
    assert MASK in said.out
    wrong = problems(file=toml(tmp_path, "idKeys = 12345678\n"))
    assert "12345678" not in wrong[0]


def test_a_secret_flag_goes_to_other_processes_by_the_environment_alone():
    settings = load(None, ["idKeys=deadbeef", "kafkaSaslPassword=hidden", "role=master"], {})
    assert settings.arguments() == ["--set", "role=master"]
    assert settings.environment() == {"ESCROW_ID_KEYS": "deadbeef", "ESCROW_KAFKA_SASL_PASSWORD": "hidden"}
    (first, second) = settings.warnings
    assert "idKeys" in first
    assert "list of processes: set ESCROW_KAFKA_SASL_PASSWORD instead" in second
    assert "deadbeef" not in first
    assert load(None, [], settings.environment()).id_keys == "deadbeef"


def test_a_port_without_tls_is_refused_where_clients_need_certificates():
    tls = ("tlsCertFile=c", "tlsKeyFile=k", "tlsClientCaFile=a")
    for port in ("0", "8081"):
        (problem,) = problems(*tls, f"grpcPort={port}")
        assert "grpcPort serves clients without a certificate" in problem
    load(None, [*tls, "grpcTlsPort=0"], {})
    load(None, [*tls[:2], "grpcPort=0"], {})


# --- the file with the defaults ---
def test_conf_escrow_toml_is_the_template():
    assert (ROOT / "conf" / "escrow.toml").read_text() == template(), "escrow config template > conf/escrow.toml"


def test_the_template_has_every_key_with_its_default(tmp_path):
    file = toml(tmp_path, template())
    settings = loaded(file=file)
    assert settings == loaded()
    assert set(settings.origins) == {name for name, key in KEYS.items() if not key.secret}
    for key in KEYS.values():
        assert key.name in template()
        assert key.variable in template()
        assert key.doc in template()


def test_every_field_has_a_key_and_names_do_not_collide():
    own = {field.name for field in fields(Settings)} - {"file", "origins", "flags", "warnings"}
    assert {key.field for key in KEYS.values()} == own
    assert len({key.variable for key in KEYS.values()}) == len(KEYS)


# --- the command ---
def test_config_show(tmp_path, capsys):
    file = toml(tmp_path, "transactionCheckMax = 5\n")
    assert main(["config", "show", "--config", str(file), "--set", "transactionTimeOut=7s", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["transactionCheckMax"] == {"value": 5, "from": f"{file}:1", "variable": "ESCROW_TRANSACTION_CHECK_MAX"}
    assert shown["transactionTimeOut"]["value"] == "7s"
    assert main(["config", "show", "--data", "x"]) == 0
    assert re.search(rf"dataDir +{tmp_path}/x +flag --data", capsys.readouterr().out)


def test_config_check(tmp_path, capsys):
    assert main(["config", "check"]) == 0
    file = toml(tmp_path, "transactionCheckMax = 500\n")
    assert main(["config", "check", "--config", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"escrow: {file}:1: transactionCheckMax: 500 is more than 255")
    assert "Traceback" not in said


def test_the_sdk_does_not_import_the_settings():
    import subprocess
    import sys

    others = ("runtime.settings", "runtime.metrics", "escrow.cli", "store", "ingest", "streaming", "numpy", "prometheus_client")
    code = f"import escrow, sys; print([m for m in sys.modules if m.startswith({others})])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert told.stdout.strip() == "[]"
