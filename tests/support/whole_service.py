"""The settings of the whole service in end-to-end tests."""

from __future__ import annotations

DEADLINE_S = 240.0
SETS = (
    "listenPort=0",
    "grpcPort=0",
    "jobMetricsPort=0",
    "transactionTimeOut=1s",
    "transactionCheckInterval=2s",
    "transactionCheckMax=2",
    "commitLogSegmentSize=1MiB",
    "maxBodySize=64KiB",
)
