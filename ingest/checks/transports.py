"""Starts and stops couriers as the groups file, the plug-ins and the known groups say."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from ingest.capabilities import Capabilities
from ingest.checks.couriers import Courier, cancel_all
from ingest.checks.plugin_couriers import ListenerCourier, Plugin, TransportCourier
from ingest.checks.webhook_courier import WebhookCourier
from ingest.checks.webhooks import NotHandedOver, WebhookClient
from ingest.errors import CannotStart
from ingest.groups import Webhook
from sinks.errors import BrokenPlugin
from sinks.plugins import load_all

LOG: Final = logging.getLogger("escrow.edge")
#: How often the groups file and the store's groups are looked at.
LOOK_S: Final = 1.0
#: How often a plug-in is asked for its groups again, in looks.
GROUPS_LOOKS: Final = 10


class Transports:
    """A part of the edge: all couriers, kept in step with the groups file, the plug-ins and the groups that there are."""

    name = "transports"

    def __init__(self, edge: Capabilities) -> None:
        self._edge = edge
        self._couriers: dict[tuple[str, str], Courier] = {}
        self._plugins: list[Plugin] = []
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._broken: dict[str, tuple[Webhook, str]] = {}

    async def open(self) -> None:
        """1 load the plug-ins; a broken one keeps the edge from starting · 2 ask them for their groups · 3 begin."""
        root, named = self._edge.settings.store_dir, self._edge.settings.plugins
        try:
            transports = await asyncio.to_thread(load_all, "escrow.check_transports", named, root)  # 1
            listeners = await asyncio.to_thread(load_all, "escrow.check_listeners", named)
        except BrokenPlugin as error:
            raise CannotStart(str(error)) from error
        for kind, found in (("escrow.check_transports", transports), ("escrow.check_listeners", listeners)):
            self._plugins += [Plugin(kind, name, made) for name, made in found]
        for plugin in self._plugins:  # 2
            await plugin.ask_groups()
            if plugin.problem:
                raise CannotStart(plugin.problem)
        if not self._edge.settings.standby:
            self._task = asyncio.get_running_loop().create_task(self._run())  # 3

    async def _run(self) -> None:
        looks = 0
        while True:
            try:
                await self._look()
                looks += 1
                if looks % GROUPS_LOOKS == 0:
                    await asyncio.gather(*[plugin.ask_groups() for plugin in self._plugins])
            except Exception:  # a defect of ours must not end all check delivery
                LOG.exception("check transports")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        await self._keep_webhooks(self._edge.core.groups.get().webhooks)
        for plugin in self._plugins:
            make = TransportCourier if plugin.kind == "escrow.check_transports" else ListenerCourier
            for group in [group for group in self._edge.checks.known_groups() if group in plugin.groups]:
                if (plugin.kind + plugin.name, group) not in self._couriers:
                    self._add((plugin.kind + plugin.name, group), make(self._edge, group, plugin))
            await self._remove(
                [key for key in self._couriers if key[0] == plugin.kind + plugin.name and key[1] not in plugin.groups]
            )

    async def _keep_webhooks(self, wanted: dict[str, Webhook]) -> None:
        have = {key[1]: courier.client.webhook for key, courier in self._couriers.items() if isinstance(courier, WebhookCourier)}
        await self._remove([("webhook", group) for group, webhook in have.items() if wanted.get(group) != webhook])
        self._broken = {group: found for group, found in self._broken.items() if wanted.get(group) == found[0]}
        for group, webhook in wanted.items():
            if ("webhook", group) in self._couriers or group in self._broken:
                continue
            try:
                client = await asyncio.to_thread(WebhookClient, group, webhook)
            except NotHandedOver as error:
                LOG.warning("webhook of group %s: %s", group, error)
                self._broken[group] = (webhook, str(error))
            else:
                self._add(("webhook", group), WebhookCourier(self._edge, client))

    def _add(self, key: tuple[str, str], courier: Courier) -> None:
        self._couriers[key] = courier
        courier.start()

    async def _remove(self, keys: Sequence[tuple[str, str]]) -> None:
        for key in keys:
            await self._couriers.pop(key).close()

    def stop(self) -> None:
        self._stopping = True
        for courier in self._couriers.values():
            courier.stop()

    async def close(self) -> None:
        self.stop()
        if self._task is not None:
            await cancel_all([self._task])
            self._task = None
        closing: list[Coroutine[Any, Any, None]] = [courier.close() for courier in self._couriers.values()]
        await asyncio.gather(*closing, return_exceptions=True)
        self._couriers.clear()
        await asyncio.gather(*[plugin.close() for plugin in self._plugins], return_exceptions=True)
        self._plugins.clear()

    def figures(self) -> dict[str, Any]:
        return {
            "couriers": [courier.figures() for courier in self._couriers.values()],
            "broken": {group: text for group, (_, text) in self._broken.items()},
            "plugins": [{"kind": plugin.kind, "name": plugin.name, "problem": plugin.problem} for plugin in self._plugins],
        }
