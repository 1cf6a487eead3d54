"""Everything that sinks raises on purpose.

SinkError
├── BrokenPlugin   a plug-in cannot be loaded; the text names its entry point, its distribution and the cause
├── Refused        raised by a transaction service that says no; its text goes to the caller
├── KafkaUnfit     Kafka, its topics or the files with its secrets are not as they must be; the text says what to change
└── RedoBroken     a record of the redo topic is not what the job wrote
"""

from __future__ import annotations


class SinkError(Exception):
    """Root of all errors of the sinks."""


class BrokenPlugin(SinkError):
    """A plug-in that cannot be used."""


class Refused(SinkError):
    """A transaction service says no. The text should tell the caller what to do."""


class KafkaUnfit(SinkError):
    """Kafka cannot be used as it is configured; restarting does not help until the configuration or the cluster is changed."""


class RedoBroken(SinkError):
    """A record of the redo topic that this job did not write, or that was damaged."""

    def __init__(self, partition: int, redo_offset: int | None, reason: str) -> None:
        super().__init__(f"redo partition {partition}, offset {redo_offset}: {reason}: who else may write to the redo topic?")
