"""Settings: one TOML file, then the environment, then flags; each overrides the one before it.

Every key is declared once, as a field in `schema`: its name in the file, kind and unit, default, bounds and
help text. The rest follows from that: the variable (`ESCROW_TRANSACTION_TIME_OUT`), the flag
(`--set transactionTimeOut=6s`), `conf/escrow.toml` (which is `template()`), the errors, `escrow config show`.

Names are RocketMQ's where it has one. A bare integer has RocketMQ's unit: milliseconds, and hours for
fileReservedTime. Where milliseconds are rounded up to whole seconds, a bare integer below 1,000 is legal, and
`Settings.warnings` asks whether seconds were meant.

    units ← key ← parse ← declare ← schema ← values ← rules ← load ← arguments
    template prints the keys of values

Import from here, not from the modules inside. The package holds plain values and imports no other room.
"""

from runtime.settings.arguments import add_arguments, from_arguments, load_arguments
from runtime.settings.key import Key
from runtime.settings.load import CLIENT_VARIABLES, PRIVATE_UMASK, SettingsError, load
from runtime.settings.parse import parse
from runtime.settings.template import template
from runtime.settings.values import KEYS, MASK, Origin, Settings

__all__ = [
    "CLIENT_VARIABLES",
    "KEYS",
    "MASK",
    "PRIVATE_UMASK",
    "Key",
    "Origin",
    "Settings",
    "SettingsError",
    "add_arguments",
    "from_arguments",
    "load",
    "load_arguments",
    "parse",
    "template",
]
