"""Two contracts for import-linter: ``allow_only`` and ``no_cycle``.

``allow_only`` is one row of the table "Rooms" in docs/architecture.md. import-linter's own ``forbidden`` contract lists
what a room must not import, so it misses a package that the list does not name. This one lists what a room may import.
Options of a contract:

- ``room``     the package the contract speaks of, with all its modules
- ``apart``    modules under the room that are not part of it (they have a contract of their own)
- ``allowed``  what it may import besides itself and the standard library
- ``denied``   modules of the standard library that it may not import (a clock, say)

A name stands for itself and everything below it. Only direct imports count: what a room imports has its own contract.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from importlinter import Contract, ContractCheck, fields, output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grimp import ImportGraph


class AllowOnly(Contract):
    """Keeps a room's direct imports to a list."""

    type_name = "allow_only"

    room = fields.StringField()
    apart = fields.ListField(subfield=fields.StringField(), required=False, default=[])
    allowed = fields.ListField(subfield=fields.StringField(), required=False, default=[])
    denied = fields.ListField(subfield=fields.StringField(), required=False, default=[])

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Looks at every direct import of every module of the room."""
        if str(self.room) not in graph.modules:
            raise ValueError(f"no such package as {self.room}: is it in root_packages?")
        broken = [
            f"{importer}:{detail['line_number']} imports {imported}"
            for importer in sorted(graph.modules)
            if self._in_room(importer)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not self._may_import(imported)
            for detail in graph.get_import_details(importer=importer, imported=imported)
        ]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Prints one line for each import that is refused."""
        _print(check)

    def _may_import(self, imported: str) -> bool:
        if _under(imported, _names(self.denied)):
            return False
        if self._in_room(imported) or _under(imported, _names(self.allowed)):
            return True
        return imported.partition(".")[0] in sys.stdlib_module_names

    def _in_room(self, module: str) -> bool:
        return _under(module, [str(self.room)]) and not _under(module, _names(self.apart))


class NoCycle(Contract):
    """No module imports itself, however long the way: not under TYPE_CHECKING and not inside a function either.

    - ``known``  modules of cycles that are there today; one that is in no cycle any more is refused
    """

    type_name = "no_cycle"

    known = fields.ListField(subfield=fields.StringField(), required=False, default=[])

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """A module is in a cycle if one that it imports leads back to it."""
        in_cycle = {
            module
            for module in graph.modules
            for imported in graph.find_modules_directly_imported_by(module)
            if graph.chain_exists(importer=imported, imported=module)
        }
        known = set(_names(self.known))
        broken = [f"{module} is in a cycle of imports" for module in sorted(in_cycle - known)]
        broken += [f"{module} is in no cycle: take it off `known`" for module in sorted(known - in_cycle)]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Prints one line for each module."""
        _print(check)


def _print(check: ContractCheck) -> None:
    for line in check.metadata["broken"]:
        output.print_error(f"- {line}", bold=False)
    output.new_line()


def _names(option: object) -> list[str]:
    """import-linter replaces the declared field by the parsed value when it builds the contract."""
    return list(option) if isinstance(option, list) else []


def _under(module: str, names: Iterable[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)
