"""Everything that streaming raises on purpose.

JobError
├── JobCannotStart   the job could not start; the text says why, in one line
└── JobStopped       the query ended by itself; the text says why, in one line
"""

from __future__ import annotations


class JobError(Exception):
    """Root of all errors of the streaming job."""


class JobCannotStart(JobError):
    """The job could not start."""


class JobStopped(JobError):
    """The streaming query ended, although nobody asked it to."""
