"""Settings that Escrow's own topics must have: looked at at every start, because somebody may have made or changed them.

A half topic that is kept too short loses bodies of pending halves, a redo topic the truth of settlement, and compaction takes
records by their keys, which mean nothing here. fileReservedTime may have been raised since the topics were made. Nothing is changed
without consent: `kafkaRepairTopics`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from sinks.errors import KafkaUnfit

ADMIN_S: Final = 60.0
TIMESTAMP_TYPE: Final = "message.timestamp.type"
LOG_APPEND: Final = "LogAppendTime"
RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
CLEANUP: Final = "cleanup.policy"

#: topic → setting → value
Wanted = Mapping[str, Mapping[str, str]]

_WHY: Final = {
    TIMESTAMP_TYPE: "ages would be counted by other clocks than the brokers'",
    RETENTION_MS: "it is kept for less than fileReservedTime asks for, so records go that are still needed",
    RETENTION_BYTES: "records go by the size of the topic, whatever their age",
    CLEANUP: "compaction takes records that are still needed",
}


def kept(retention_ms: int) -> dict[str, str]:
    """Of a topic whose records stay for so long, and no shorter for any other reason."""
    return {RETENTION_MS: str(retention_ms), RETENTION_BYTES: "-1", CLEANUP: "delete"}


def is_enough(setting: str, value: str, wanted: str) -> bool:
    """Whether a value serves as well as the wanted one."""
    if setting == RETENTION_MS:
        return int(value) < 0 or int(value) >= int(wanted)
    if setting == RETENTION_BYTES:
        return int(value) < 0
    return value == wanted


def require(admin: AdminClient, wanted: Wanted, *, repair: bool, told: Callable[[str], None] = lambda _: None) -> None:
    """KafkaUnfit where a topic would lose what is needed; with `repair` it is changed, and `told` hears of it."""
    for topic, settings in wanted.items():
        resource = ConfigResource(ResourceType.TOPIC, topic)
        found = _described(admin, resource)
        bad = {name: found[name].value for name, value in settings.items() if not is_enough(name, found[name].value, value)}
        if not bad:
            continue
        if not repair:
            raise KafkaUnfit(_explained(topic, bad, settings))
        _set(admin, topic, {name: settings[name] for name in bad})
        told(f"topic {topic}: " + ", ".join(f"{name} was {value}, is {settings[name]}" for name, value in bad.items()))


def _explained(topic: str, bad: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    faults = "; ".join(f"{name}={value}: {_WHY[name]}" for name, value in bad.items())
    change = ",".join(f"{name}={wanted[name]}" for name in bad)
    return (
        f"topic {topic} has {faults}. Change it: kafka-configs --alter --topic {topic} --add-config {change}; or let Escrow do it "
        "at its next start: kafkaRepairTopics = true"
    )


def _set(admin: AdminClient, topic: str, settings: Mapping[str, str]) -> None:
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    try:
        admin.incremental_alter_configs([resource])[resource].result(ADMIN_S)
    except KafkaException as error:
        raise KafkaUnfit(f"topic {topic}: its settings cannot be changed (kafkaRepairTopics): {error.args[0].str()}") from error


def _described(admin: AdminClient, resource: ConfigResource) -> Any:
    """A topic's settings. Asked again for a while: a topic that was just made is not known to every broker at once."""
    give_up_s = time.monotonic() + ADMIN_S
    while True:
        try:
            return admin.describe_configs([resource])[resource].result(ADMIN_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > give_up_s:
                raise
            time.sleep(0.1)
