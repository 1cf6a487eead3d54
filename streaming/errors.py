"""Everything that streaming raises on purpose.

JobError
├── JobCannotStart   the job could not start, and a restart does not help until something is changed
├── JavaDied         the Java side of Spark ended while the job was starting: it may have been killed, so starting again may help
└── JobStopped       the query ended by itself
Each text says why, in one line.
"""

from __future__ import annotations


class JobError(Exception):
    """Root of all errors of the streaming job."""


class JobCannotStart(JobError):
    """The job could not start."""


class JavaDied(JobError):
    """The Java side of Spark ended while the job was starting."""


class JobStopped(JobError):
    """The streaming query ended without being asked to."""
