"""Options of the data sources, checked: a wrong one is refused by its name, before anything is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from escrow._transport import tls_context
from escrow.api import Api

#: Of every source that reads over HTTP. `tokenFile` is read where the reading is done: on the executors, too.
HTTP: Final = ("url", "token", "tokenFile", "caFile", "timeout", "retryFor")


class OptionError(ValueError):
    """An option that is missing, unknown or wrong."""


class Given:
    """The options of one source."""

    def __init__(self, format: str, options: Mapping[str, str], known: Iterable[str]) -> None:
        self.format, self._known = format, {name.lower(): name for name in known}
        self._values = {name.lower(): str(value) for name, value in options.items()}
        for name in self._values:
            if name not in self._known:
                raise OptionError(
                    f'format "{format}": there is no option {name!r}; it takes {", ".join(sorted(self._known.values()))}'
                )

    def text(self, name: str, otherwise: str = "") -> str:
        return self._values.get(name.lower(), otherwise)

    def need(self, name: str, example: str) -> str:
        found = self.text(name)
        if not found:
            raise OptionError(f'format "{self.format}": option {name!r} is missing; for example .option("{name}", "{example}")')
        return found

    def flag(self, name: str, otherwise: bool) -> bool:
        found = self.text(name, str(otherwise)).lower()
        if found not in ("true", "false"):
            raise OptionError(f"{name}: {found!r} is neither true nor false")
        return found == "true"

    def number(self, name: str, otherwise: int, least: int = 1) -> int:
        found = self.text(name, str(otherwise))
        if not (found.isascii() and found.isdecimal() and int(found) >= least):
            raise OptionError(f"{name}: {found!r} is not a whole number of {least} or more")
        return int(found)

    def seconds(self, name: str, otherwise: float) -> float:
        try:
            found = float(self.text(name, str(otherwise)))
        except ValueError:
            found = -1.0
        if not 0 < found < 1e9:
            raise OptionError(f"{name}: {self.text(name)!r} is not a number of seconds")
        return found

    def check_place(self) -> None:
        """Either `url` or `path`."""
        if bool(self.text("url")) == bool(self.text("path")):
            raise OptionError(
                f'format "{self.format}": give either "url" (http://127.0.0.1:7480) or "path" (the data directory, on this machine)'
            )

    def api(self) -> Api:
        """A connection to the service, made where it is used."""
        url, ca_file = self.need("url", "http://127.0.0.1:7480"), self.text("caFile")
        try:
            return Api(
                url,
                token=self._token(),
                tls=tls_context(ca_file=ca_file) if ca_file else None,
                timeout_s=self.seconds("timeout", 30.0),
                retry_for_s=self.seconds("retryFor", 60.0),
            )
        except OSError as error:
            raise OptionError(f"caFile: {ca_file}: {error.strerror}") from error
        except ValueError as error:
            raise OptionError(str(error)) from error

    def _token(self) -> str | None:
        file = self.text("tokenFile")
        if not file:
            return self.text("token") or None
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise OptionError(f"tokenFile: {file}: {error.strerror}; it is read on every machine that runs tasks") from error
