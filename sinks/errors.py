"""Everything that sinks raises on purpose.

SinkError
├── BrokenPlugin   a plug-in cannot be loaded; the text names its entry point, its distribution and the cause
└── Refused        raised by a transaction service that says no; its text goes to the caller
"""

from __future__ import annotations


class SinkError(Exception):
    """Root of all errors of the sinks."""


class BrokenPlugin(SinkError):
    """A plug-in that cannot be used."""


class Refused(SinkError):
    """A transaction service says no. The text should tell the caller what to do."""
