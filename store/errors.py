"""Everything that store raises on purpose.

StoreError
├── NotAStore            the directory holds something else, or nothing
├── FormatTooNew         written by a later release
├── GeometryMismatch     asked for other file sizes than the store was made with
├── StoreLocked          another process writes this side of the store
├── ForeignFile          a file that is not ours lies where only ours belong
├── StoreUnusable        the operating system refused (read-only, permissions, I/O error)
│   ├── NoRoom           the disk or the quota is full: the same may be tried again when there is room
│   ├── FlushFailed      a flush failed: nothing may be acknowledged until the store is reopened
│   └── SegmentGone      the file is not there, or not any more (retention); an IndexError too
├── Corrupt              bytes that fail their check; names file, offset and reason
├── NamesLost            the dictionary is lost or wrong, and nothing tells the names of numbers in use
├── CursorBeyondLog      the settlement has read further than the log reaches: an older log was restored
├── BatchBeyondCursor    a batch begins beyond the cursor: records between them would be lost
└── InvalidRecord        the caller's record breaks a rule (a ValueError too)
    ├── BodyTooLarge
    ├── BatchTooLarge
    ├── IllegalName      topic or group: empty, too long, illegal characters, reserved
    ├── IllegalProperty
    ├── DuplicateKey     the dedup key was used for another body
    ├── NotAdded         a member that its transaction does not take
    │   ├── NoTransaction        there is none of that id for this group
    │   ├── TransactionEnded
    │   ├── OrdinalTaken         by another message
    │   └── TransactionTooLarge  transactionMessagesMax, transactionBytesMax
    ├── JobTooOld        the settling job that runs does not know what the record needs
    └── DelayedHalf      a half may not carry a delay
"""

from __future__ import annotations

from pathlib import Path


class StoreError(Exception):
    """Root of all errors of the store."""


class NotAStore(StoreError):
    """The directory is not an Escrow store."""


class FormatTooNew(StoreError):
    """The store was written by a later release of Escrow."""


class GeometryMismatch(StoreError):
    """File sizes are fixed when a store is made."""


class StoreLocked(StoreError):
    """Another process is the writer of this side."""


class ForeignFile(StoreError):
    """A file that is not ours lies among the segments."""


class StoreUnusable(StoreError):
    """The operating system refused an operation that the store needs."""


class NoRoom(StoreUnusable):
    """The disk or the quota is full. What was begun may be tried again as it is once there is room."""


class FlushFailed(StoreUnusable):
    """A flush failed; what was not yet acknowledged is in doubt until the store is reopened."""


class SegmentGone(StoreUnusable, IndexError):
    """No file holds this place: retention took it, or it was never made."""


class Corrupt(StoreError):
    """Bytes that fail their own check."""

    def __init__(self, file: Path | str, offset: int, reason: str) -> None:
        super().__init__(f"{file} at {offset}: {reason}")
        self.file, self.offset, self.reason = str(file), offset, reason


class NamesLost(StoreError):
    """Numbers of groups or topics are in use whose names nothing tells."""


class CursorBeyondLog(StoreError):
    """The settlement's cursor lies beyond the end of the log."""


class BatchBeyondCursor(StoreError):
    """A batch begins beyond the settlement's cursor."""


class InvalidRecord(StoreError, ValueError):
    """A record that the store will not take; the text begins with its field. `number`: which one of a batch, -1 = unknown."""

    number = -1


class BodyTooLarge(InvalidRecord):
    """The body is larger than maxBodySize."""


class BatchTooLarge(InvalidRecord):
    """The batch does not fit into one segment, or has too many messages."""


class IllegalName(InvalidRecord):
    """A topic or group name that is not allowed."""


class IllegalProperty(InvalidRecord):
    """A property that cannot be stored."""


class DuplicateKey(InvalidRecord):
    """A dedup key that was used for another body within the window."""


class NotAdded(InvalidRecord):
    """A message that cannot become a member of the transaction that it names."""


class NoTransaction(NotAdded):
    """The transaction is not there, is of another group, or is itself a member of one."""


class TransactionEnded(NotAdded):
    """Nothing can be added to a transaction that has ended."""


class OrdinalTaken(NotAdded):
    """The transaction has another message with this ordinal."""


class TransactionTooLarge(NotAdded):
    """The transaction would hold more messages, or more bytes, than are allowed."""


class JobTooOld(InvalidRecord):
    """The settling job that runs is of a release that does not know what this record needs."""


class DelayedHalf(InvalidRecord):
    """A half message with a delay is refused."""
