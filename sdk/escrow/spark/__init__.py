"""Spark reads Escrow: data sources for PySpark 4.2 (extra `spark` of the client; docs/spark.md).

    register(spark)                                    all formats, and views of the tables where a url or a path is given
    spark.readStream.format("escrow")                  released messages of a topic, as a stream; spark.read: as they are now
    spark.read.format("escrow.transactions")           every transaction: state, outcome, attempts, times
    spark.read.format("escrow.ops")                    what was said about them, in log order
    spark.read.format("escrow.checks")                 hand-overs of check requests, with the answer that followed
    spark.read.format("escrow.audit")                  what operators and consumers changed

`import escrow` does not import this package, and the client needs no Spark.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from escrow.spark._options import Given
from escrow.spark.messages import EscrowMessages
from escrow.spark.tables import EscrowAudit, EscrowChecks, EscrowOps, EscrowTransactions

__all__ = ["SOURCES", "EscrowAudit", "EscrowChecks", "EscrowMessages", "EscrowOps", "EscrowTransactions", "register"]

SOURCES: Final[tuple[type[DataSource], ...]] = (
    EscrowMessages,
    EscrowTransactions,
    EscrowOps,
    EscrowChecks,
    EscrowAudit,
)
_TABLES: Final = (EscrowTransactions, EscrowOps, EscrowChecks, EscrowAudit)
PUSH_DOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, *, prefix: str = "escrow_", **options: str) -> list[str]:
    """Register all formats; with `url=` or `path=`, also a temporary view for each table: escrow_transactions, escrow_ops,
    escrow_checks, escrow_audit. The names of the views. A view reads anew whenever it is queried.

    Filters reach Python data sources only where Spark is told so; this turns that on for the session.
    """
    for source in SOURCES:
        spark.dataSource.register(source)
    spark.conf.set(PUSH_DOWN, "true")
    if not options:
        return []
    views = []
    for source in _TABLES:
        Given(source.name(), options, source.OPTIONS).check_place()
        views.append(prefix + source.name().removeprefix("escrow."))
        spark.read.format(source.name()).options(**options).load().createOrReplaceTempView(views[-1])
    return views
