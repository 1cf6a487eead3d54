"""What is said of single producer groups: a TOML file (setting groupsFile), read again when it changes
(`ingest.auth.reloading_file`).

    [groups."orders"]
    rate_max = 500                # in the place of groupRateMax; 0 = no limit
    pending_max = 100000          # groupPendingMax
    pending_age_max = "10m"       # groupPendingAgeMax

    [groups."orders".webhook]     # check requests are posted here (ingest.checks.webhooks)
    url = "https://orders.example/escrow/checks"
    secret_file = "orders.secret" # or secret_env = "ESCROW_SECRET_ORDERS"; relative to this file
    timeout = "5s"                # of one attempt
    concurrency = 4               # requests under way at a time
    ca_file = "our-ca.pem"        # trust these authorities instead of the system's

Only an operator writes the file: a webhook cannot be set over the network.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ingest.auth.reloading_file import Watched
from ingest.errors import GroupsUnusable
from runtime.settings import Key, Settings
from runtime.settings import parse as parse_setting
from store.errors import IllegalName
from store.naming import check_name

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where a group's check requests are posted. The secret is named here, never held."""

    url: str
    secret_file: Path | None
    secret_env: str
    timeout_s: float
    concurrency: int
    ca_file: Path | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Quotas of a group; 0 = no limit."""

    rate_max: int = 0
    pending_max: int = 0
    pending_age_max_ms: int = 0

    def __bool__(self) -> bool:
        return bool(self.rate_max or self.pending_max or self.pending_age_max_ms)


@dataclass(frozen=True, slots=True)
class Group:
    """What the file says of one group."""

    limits: Limits
    webhook: Webhook | None = None


@dataclass(frozen=True)
class Groups:
    """What holds for whom: the settings for all, the file for some."""

    default: Limits
    named: Mapping[str, Group]

    def limits(self, group: str) -> Limits:
        found = self.named.get(group)
        return self.default if found is None else found.limits

    @cached_property
    def webhooks(self) -> dict[str, Webhook]:
        return {name: group.webhook for name, group in self.named.items() if group.webhook is not None}

    @cached_property
    def any_limit(self) -> bool:
        return bool(self.default) or any(group.limits for group in self.named.values())

    @cached_property
    def any_age_limit(self) -> bool:
        return bool(self.default.pending_age_max_ms) or any(group.limits.pending_age_max_ms for group in self.named.values())


def watch(settings: Settings) -> Watched[Groups]:
    """The groups file, whether it is there or not."""
    default = Limits(settings.group_rate_max, settings.group_pending_max, settings.group_pending_age_max_ms)
    return Watched(settings.groups_file, lambda text: parse(text or "", settings.groups_file, default))


def parse(text: str, file: Path, default: Limits) -> Groups:
    """The groups of a file; GroupsUnusable names the group and the field."""
    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise GroupsUnusable(f"{file}: not valid TOML: {error}") from None
    _only(content, {"groups"}, str(file))
    named = _table(content, "groups", f"{file}: ")
    return Groups(default, {name: _group(name, _table(named, name, f"{file}: groups."), file, default) for name in named})


def _group(name: str, table: Mapping[str, Any], file: Path, default: Limits) -> Group:
    where = f'{file}: groups."{name}"'
    try:
        check_name(name, "group")
    except IllegalName as error:
        raise GroupsUnusable(f"{where}: {error}") from None
    _only(table, {"rate_max", "pending_max", "pending_age_max", "webhook"}, where)
    limits = Limits(
        _value(table, _key("rate_max", "count", 0, 1 << 40), default.rate_max, where),
        _value(table, _key("pending_max", "count", 0, 1 << 40), default.pending_max, where),
        _value(table, _key("pending_age_max", "duration", 0, 1 << 40), default.pending_age_max_ms, where),
    )
    if "webhook" not in table:
        return Group(limits)
    return Group(limits, _webhook(_table(table, "webhook", f"{where}."), f"{where}.webhook", file.parent))


def _webhook(table: Mapping[str, Any], where: str, directory: Path) -> Webhook:
    _only(table, {"url", "secret_file", "secret_env", "timeout", "concurrency", "ca_file"}, where)
    secret_file, secret_env = _text(table, "secret_file", where), _text(table, "secret_env", where)
    if bool(secret_file) == bool(secret_env):
        raise GroupsUnusable(f"{where}.secret_file: give either secret_file or secret_env: requests are signed with it")
    if secret_env and _VARIABLE.fullmatch(secret_env) is None:
        raise GroupsUnusable(f"{where}.secret_env: not the name of a variable: write one such as ESCROW_SECRET_ORDERS")
    ca_file = _text(table, "ca_file", where)
    return Webhook(
        _url(_text(table, "url", where), where),
        directory / secret_file if secret_file else None,
        secret_env,
        _value(table, _key("timeout", "duration", 10, 300_000), 5_000, where) / 1000,
        _value(table, _key("concurrency", "count", 1, 256), 4, where),
        directory / ca_file if ca_file else None,
    )


def _url(text: str, where: str) -> str:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or not text.isascii() or any(character.isspace() for character in text):
        raise GroupsUnusable(f"{where}.url: must be http://… or https://… with a host")
    if parts.username is not None or parts.password is not None:
        raise GroupsUnusable(f"{where}.url: holds a name or a password: take it out, requests are signed instead")
    return text


def _table(parent: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = parent.get(name, {})
    if not isinstance(found, dict):
        raise GroupsUnusable(f"{where}{name}: must be a table")
    return found


def _only(table: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise GroupsUnusable(f"{where}: {unknown[0][:64]}: no such field; there are {', '.join(sorted(known))}")


def _text(table: Mapping[str, Any], name: str, where: str) -> str:
    found = table.get(name, "")
    if not isinstance(found, str):
        raise GroupsUnusable(f"{where}.{name}: must be text")
    return found


def _key(name: str, kind: str, least: int, most: int) -> Key:
    return Key(name, kind, "", "", "", least=least, most=most)


def _value(table: Mapping[str, Any], key: Key, default: int, where: str) -> int:
    """A number or a time, with the rules and the words of the settings."""
    if key.name not in table:
        return default
    raw = table[key.name]
    if key.kind == "duration" and isinstance(raw, int) and raw:  # RocketMQ has no such file: the unit would be a guess
        raise GroupsUnusable(f'{where}.{key.name}: {raw} has no unit: write a time such as "10m"')
    try:
        value: int = parse_setting(key, raw)
    except ValueError as error:
        raise GroupsUnusable(f"{where}.{key.name}: {error}") from None
    return value
