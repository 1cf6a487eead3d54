"""Reads the sources, in order: file, environment, flags; collects everything that is wrong."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runtime.settings.key import PREFIX
from runtime.settings.parse import WrongValue, parse, warning_of
from runtime.settings.rules import check_together
from runtime.settings.values import KEYS, Origin, Settings

DEFAULT_FILE: Final = Path("conf/escrow.toml")
CONFIG_VARIABLE: Final = "ESCROW_CONFIG"
#: Files that server processes create are readable by their user alone: messages, logs, backups, exports.
PRIVATE_UMASK: Final = 0o077
#: Variables of the client's command line (`escrow.cli.remote`).
CLIENT_VARIABLES: Final = frozenset({"ESCROW_URL", "ESCROW_TOKEN", "ESCROW_TOKEN_FILE", "ESCROW_CA_FILE"})
#: Variables with our prefix that are not keys: the file's, the client's, and the failpoint of the crash tests.
OTHER_VARIABLES: Final = frozenset({CONFIG_VARIABLE, "ESCROW_FAILPOINT"}) | CLIENT_VARIABLES
#: Kubernetes sets these for a service called escrow….
_SERVICE_LINK: Final = re.compile(r"ESCROW_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
#: Secrets that groupsFile refers to: not keys, and never shown.
SECRET_PREFIX: Final = "ESCROW_SECRET_"
FLAG_RANK: Final = 3

#: RocketMQ's names, and older names of ours, with the name here.
_KNOWN_ELSEWHERE: Final = {
    "brokerRole": "role",
    "storePathRootDir": "dataDir",
    "maxMessageSize": "maxBodySize",
    "defaultTopicQueueNums": "queuesPerTopic",
    "mapedFileSizeCommitLog": "commitLogSegmentSize",
    "mappedFileSizeCommitLog": "commitLogSegmentSize",
    "transactionTimeout": "transactionTimeOut",
    "checkTransactionMessageTimerInterval": "transactionCheckInterval",
    "tranStateTableMappedFileSize": "tranStateTableMapedFileSize",
    "tranRedoLogMappedFileSize": "tranRedoLogMapedFileSize",
    "maxReconsumeTimes": "maxDeliveries",
    "invisibleTime": "visibilityTime",
    "pullBatchSize": "messagesPerPollMax",
    "grpcServerPort": "grpcPort",
    "checkImmunityTime": "CHECK_IMMUNITY_TIME_IN_SECONDS, a property of each message",
}


class SettingsError(ValueError):
    """The settings are wrong. `problems` has a sentence for each fault: place, key, fault, remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def load(file: Path | None = None, flags: Iterable[str] = (), environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from defaults < file < environment < flags ("key=value"). SettingsError lists all faults.

    Without `file`: the file that ESCROW_CONFIG names, else conf/escrow.toml if it exists, else no file.
    """
    environ = os.environ if environ is None else environ
    flags = tuple(flags)
    problems: list[str] = []
    path = _choose_file(file, environ)
    found: dict[str, tuple[object, Origin]] = {}
    found.update(_from_file(path, problems))
    found.update(_from_environment(environ, problems))
    found.update(_from_flags(flags, problems))
    values, origins, warnings = _parse_all(found, problems)
    if not problems:
        problems += check_together(values, origins)
    if problems:
        raise SettingsError(problems)
    values.setdefault("data_dir_text", Settings.data_dir_text)
    for name in (key.field for key in KEYS.values() if key.kind == "path"):
        if values.get(name):
            values[name] = str(Path(values[name]).absolute())
    file = path.absolute() if path else None
    return Settings(**values, file=file, origins=origins, flags=flags, warnings=tuple(warnings))


def _choose_file(file: Path | None, environ: Mapping[str, str]) -> Path | None:
    if file is not None:
        return file
    if environ.get(CONFIG_VARIABLE):
        return Path(environ[CONFIG_VARIABLE])
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _from_file(path: Path | None, problems: list[str]) -> dict[str, tuple[object, Origin]]:
    if path is None:
        return {}
    try:
        text = path.read_bytes().decode()
        content = tomllib.loads(text)
    except OSError as error:
        problems.append(f"{path}: {error.strerror}: name a readable file with --config or {CONFIG_VARIABLE}")
        return {}
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are both
        problems.append(f"{path}: not valid TOML: {error}")
        return {}
    found: dict[str, tuple[object, Origin]] = {}
    for name, value in content.items():
        origin = Origin(1, f"{path}:{_line_of(text, name)}")
        if name in KEYS:
            found[name] = (value, origin)
        elif isinstance(value, dict):
            problems.append(f"{origin}: [{name}] is a table; keys stand at the top level: remove the line")
        else:
            problems.append(f"{origin}: {_unknown(name)}")
    return found


def _line_of(text: str, name: str) -> int:
    """The line of a top-level key; tomllib does not report it."""
    pattern = re.compile(rf"""\s*(\[\s*)*["']?{re.escape(name)}["']?\s*[=.\]]""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, tuple[object, Origin]]:
    known = {key.variable: key for key in KEYS.values()}
    found: dict[str, tuple[object, Origin]] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES or variable.startswith(SECRET_PREFIX):
            continue
        if variable in known:
            found[known[variable].name] = (environ[variable], Origin(2, f"variable {variable}"))
        elif not _SERVICE_LINK.fullmatch(variable):
            close = difflib.get_close_matches(variable, known, 1, 0.8)
            hint = f"did you mean {close[0]}?" if close else "unset it; escrow config show lists the keys"
            problems.append(f"variable {variable}: no such setting: {hint}")
    return found


def _from_flags(flags: Iterable[str], problems: list[str]) -> dict[str, tuple[object, Origin]]:
    found: dict[str, tuple[object, Origin]] = {}
    for flag in flags:
        name, sign, value = flag.partition("=")
        if not sign:
            problems.append(f"flag --set: {flag}: has no value: write --set {name}=VALUE")
        elif name in KEYS:
            found[name] = (value, Origin(FLAG_RANK, "flag --data" if name == "dataDir" else "flag --set"))
        else:
            problems.append(f"flag --set: {_unknown(name)}")
    return found


def _unknown(name: str) -> str:
    if name in _KNOWN_ELSEWHERE:
        return f"{name}: no such key: it is called {_KNOWN_ELSEWHERE[name]} here"
    folded = {known.lower(): known for known in KEYS}
    close = difflib.get_close_matches(name.lower(), folded, 1, 0.7)
    hint = f"did you mean {folded[close[0]]}?" if close else "escrow config show lists the keys"
    return f"{name}: no such key: {hint}"


def _parse_all(
    found: Mapping[str, tuple[object, Origin]], problems: list[str]
) -> tuple[dict[str, Any], dict[str, Origin], list[str]]:
    """(values by field, origins by name, warnings)"""
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    warnings: list[str] = []
    for name, (raw, origin) in found.items():
        key = KEYS[name]
        try:
            values[key.field] = parse(key, raw)
            if warning := warning_of(key, raw, values[key.field]):
                warnings.append(f"{origin}: {name}: {warning}")
            if key.secret and origin.rank == FLAG_RANK and raw:
                seen = "other users of this machine can read it in the list of processes"
                warnings.append(f"{origin}: {name}: {seen}: set {key.variable} instead")
        except WrongValue as error:
            problems.append(f"{origin}: {name}: {'invalid value (not shown: secret)' if key.secret else error}")
        origins[name] = origin
    return values, origins, warnings
