"""`escrow store …` as a person or a script meets it: words, JSON, exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from escrow.cli import exits, main
from store.edge.store import EdgeStore
from store.errors import Corrupt
from store.messages import Message
from tests.support.sample_store import T0_MS, build_sample

GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli") / "store"
    build_sample(root)
    return root


@pytest.fixture
def store(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "store")
    return tmp_path / "store"


def run(*args: object, code: int = exits.OK) -> None:
    assert main([str(arg) for arg in args]) == code


def damage(store: Path) -> Path:
    """Flip a byte in the body of half 4, whose frame lies at 661."""
    path = store / "commitlog" / ("0" * 20)
    content = bytearray(path.read_bytes())
    content[661 + 120] ^= 0xFF
    path.write_bytes(content)
    return path


# --- verify ---
def test_verify_sound(pristine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("store", "verify", pristine)
    out = capsys.readouterr().out
    assert out.endswith(f"{pristine}: sound\n")
    assert "frames: 27\n" in out
    assert "  PREPARED: 7\n" in out


def test_verify_names_the_problem(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(store)
    run("store", "verify", store, code=exits.PROBLEMS)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{path}:661: the frame's CRC does not match its bytes"
    assert out[-1] == f"{store}: 1 problem"


def test_verify_quick(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(store)
    run("store", "verify", store, "--quick")
    assert "sound" in capsys.readouterr().out


def test_verify_json(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("store", "verify", store, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["problems"] == []
    assert found["summary"]["halves"] == 13
    path = damage(store)
    run("store", "verify", store, "--json", code=exits.PROBLEMS)
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert found["problems"] == [{"file": str(path), "offset": 661, "reason": "the frame's CRC does not match its bytes"}]


def test_verify_of_a_running_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with EdgeStore(store) as edge:
        edge.prepare([Message("orders", "paid", b"one more")], T0_MS)
        run("store", "verify", store)
    assert "halves: 14\n" in capsys.readouterr().out


# --- dump ---
@pytest.mark.parametrize("what", ["op", "state", "redo", "topic-paid"])
def test_dump_text(pristine: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    kind, _, topic = what.partition("-")
    run("store", "dump", pristine, f"--{kind}", *([topic] if topic else []))
    found = capsys.readouterr().out.splitlines()
    golden = (GOLDEN / f"dump-{what}.txt").read_text().splitlines()
    # The golden dumps are of the store before its two corrupt frames were mended.
    assert len(found) == len(golden)
    assert [line for line, other in zip(found, golden, strict=True) if line != other and "corrupt=" not in other] == []


def test_dump_of_halves_is_the_default(pristine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("store", "dump", pristine, "--from", 8, "--limit", 2)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("half_offset=8 ")
    assert second.startswith("half_offset=9 ")
    assert 'body="half 9"' in second


def test_dump_json_lines(pristine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("store", "dump", pristine, "--topic", "shipped", "--json")
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(record["queue_id"], record["queue_offset"]) for record in found] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert found[0]["body"] == {"base64": "b3JkaW5hcnk="}
    assert found[1]["hole"] is True


def test_dump_shows_corrupt_records(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(store)
    run("store", "dump", store)
    lines = capsys.readouterr().out.splitlines()
    assert lines[4] == 'half_offset=4 commit_log_offset=661 size_bytes=155 corrupt="the frame\'s CRC does not match its bytes"'
    assert len(lines) == 13


def test_dump_of_an_unknown_topic(pristine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("store", "dump", pristine, "--topic", "nothing", code=exits.ERROR)
    error = capsys.readouterr().err
    assert error.startswith("escrow: topic: 'nothing' is not a topic of this store")
    assert error.count("\n") == 1


def test_dump_of_two_kinds_is_refused(pristine: Path) -> None:
    with pytest.raises(SystemExit) as exit_code:
        run("store", "dump", pristine, "--half", "--op")
    assert exit_code.value.code == exits.ERROR


# --- stats, rebuild ---
def test_stats(pristine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("store", "stats", pristine)
    text = capsys.readouterr().out
    assert "pending: 7\n" in text
    assert "size_bytes: 131072 (128.0 KiB)" in text
    run("store", "stats", pristine, "--json")
    assert json.loads(capsys.readouterr().out)["states"]["COMMITTED"] == 3


def test_rebuild(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("store", "rebuild", store)
    out = capsys.readouterr().out
    assert out.startswith(f"rebuilt {store}\n")
    assert "generation: 2\n" in out
    run("store", "verify", store)


def test_repair(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("store", "repair", store)
    assert "nothing to repair" in capsys.readouterr().out
    whole = (store / "audit").read_bytes()
    (store / "audit").write_bytes(whole[:-1])
    with pytest.raises(Corrupt, match="escrow store repair"):
        EdgeStore(store)
    run("store", "repair", store, "--json")
    told = json.loads(capsys.readouterr().out)["audit"]
    assert Path(told["original"]).read_bytes() == whole[:-1]
    EdgeStore(store).close()


def test_rebuild_beside_a_writer(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with EdgeStore(store):
        run("store", "rebuild", store, code=exits.ERROR)
    assert "stop it first" in capsys.readouterr().err


# --- errors ---
@pytest.mark.parametrize("tool", ["verify", "dump", "stats", "rebuild"])
def test_not_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str], tool: str) -> None:
    run("store", tool, tmp_path, code=exits.ERROR)
    error = capsys.readouterr().err
    assert error.startswith("escrow: ")
    assert "not an Escrow store" in error
    assert "Traceback" not in error


def test_traceback_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--traceback", "store", "verify", tmp_path, code=exits.ERROR)
    assert "Traceback" in capsys.readouterr().err


def test_negative_numbers_are_wrong_usage(pristine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("store", "dump", pristine, "--limit", "-1")
    assert "whole number" in capsys.readouterr().err


def test_without_a_tool_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    run("store", code=exits.ERROR)
    assert "verify" in capsys.readouterr().err


def test_as_a_program(store: Path) -> None:
    """The real thing, once: `python -m escrow`."""

    def escrow(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "escrow", *args], capture_output=True, text=True, timeout=60, check=False)

    done = escrow("store", "verify", str(store))
    assert (done.returncode, done.stderr) == (exits.OK, "")
    assert done.stdout.endswith("sound\n")
    damage(store)
    done = escrow("store", "verify", str(store))
    assert done.returncode == exits.PROBLEMS
    assert ":661: " in done.stdout
    piped = subprocess.run(
        f"{sys.executable} -m escrow store dump {store} --redo | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert piped.stdout.startswith("redo_entry=0 ")
    assert piped.stderr == ""
