"""Order events in windows: a Spark query over Escrow's released messages.

    python examples/spark_orders.py --url http://localhost:7480 --topic order-paid --out /tmp/revenue

Each message is the JSON of an order: {"customer": "ada", "amount": 12.5}. The query adds up the orders of each customer
for each minute, by the time of their release, and writes a row to Parquet when the minute is over. Kill it at any time and
start it again: it goes on from its checkpoint, and no order is counted twice.

With --once it takes what is there, writes it and ends; without, it runs until it is stopped. Rows go to Parquet files or,
with --out console, to the terminal: there is no Spark sink for Escrow's own topics yet.
"""

from __future__ import annotations

import argparse
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import escrow.spark

ORDER = "customer STRING, amount DOUBLE"


def revenue(messages: DataFrame) -> DataFrame:
    """Orders of each customer in each minute."""
    orders = messages.select("released_at", f.from_json(f.decode("body", "UTF-8"), ORDER).alias("order"))
    return (
        orders.where("order IS NOT NULL")
        .withWatermark("released_at", "10 seconds")
        .groupBy(f.window("released_at", "1 minute"), "order.customer")
        .agg(f.count("*").alias("orders"), f.sum("order.amount").alias("amount"))
        .select(f.col("window.start").alias("minute"), "customer", "orders", "amount")
    )


def start(spark: SparkSession, args: argparse.Namespace) -> StreamingQuery:
    messages = (
        spark.readStream.format("escrow")
        .option("url", args.url)
        .option("topic", args.topic)
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", "100000")
        .load()
    )
    writer = revenue(messages).writeStream.queryName("revenue")
    if args.out == "console":
        writer = writer.format("console").outputMode("update")
    else:
        writer = writer.format("parquet").option("path", args.out).outputMode("append")
    writer = writer.option("checkpointLocation", args.checkpoint or f"{args.out}.checkpoint")
    return (writer.trigger(availableNow=True) if args.once else writer.trigger(processingTime="5 seconds")).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://localhost:7480")
    parser.add_argument("--topic", default="order-paid")
    parser.add_argument("--out", default="console", help="a directory for Parquet files, or console")
    parser.add_argument("--checkpoint", help="default: beside --out")
    parser.add_argument("--once", action="store_true", help="take what is there, and end")
    args = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("orders").config("spark.ui.enabled", "false")
    # All of it runs on this machine.
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.getOrCreate()
    escrow.spark.register(spark)
    try:
        start(spark, args).awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
