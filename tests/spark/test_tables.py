"""The tables over HTTP and from the files of the data directory: the same rows, and those that the service tells of itself."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan

import escrow.spark
from escrow.spark import tables
from store.read.tables import COLUMNS
from tests.support.fake_escrow import eventually

HALF = {"group": "shop", "topic": "tables", "text": "x"}


@pytest.fixture(scope="module")
def played(service):
    """Committed, rolled back, pending, answered by a check, forced by an operator: ids by what became of them."""
    from tests.support.edge_client import EdgeClient

    with EdgeClient(service.port) as client:
        ids = client.prepare([{**HALF, "key": f"k{number}"} for number in range(5)])
        client.end("shop", ids[0], "commit")
        client.end("shop", ids[1], "rollback")
        client.act("commit", [ids[2]])

        def asked():
            found = client.call("GET", "/v1/groups/shop/checks?member=m1&wait_s=1")["checks"]
            return [check for check in found if check["id"] == ids[3]]

        eventually(asked)
        client.end("shop", ids[3], "unknown", from_check=True)
        eventually(asked)
        client.end("shop", ids[3], "commit", from_check=True)
        return dict(zip(("committed", "rolled_back", "forced", "checked", "pending"), ids, strict=True))


def places(service):
    return {"path": str(service.data)}, {"url": service.url}


def load(spark, table, where, **rest):
    return spark.read.format(f"escrow.{table}").options(**where, **rest).load()


def rows(spark, service, table, **rest):
    """The rows of both ways, which must be the same."""
    by_path, by_url = (
        [row.asDict() for row in load(spark, table, where, **rest).collect()] for where in places(service)
    )  # fmt: skip
    assert sorted(map(str, by_path)) == sorted(map(str, by_url))
    return by_path


def test_the_client_and_the_store_agree_on_columns():
    assert {name: dict(columns) for name, columns in COLUMNS.items()} == {
        name: dict(columns) for name, columns in tables.COLUMNS.items() if name != "audit"
    }


def test_transactions(spark, service, client, played):
    told = client.transaction(played["checked"])
    found = {row["id"]: row for row in rows(spark, service, "transactions") if row["group"] == "shop"}
    assert set(found) == set(played.values())
    states = {name: found[id]["state"] for name, id in played.items()}
    assert states == {
        "committed": "committed", "rolled_back": "rolled_back", "forced": "committed", "checked": "committed", "pending": "pending",
    }  # fmt: skip
    assert [found[played[name]]["settled_by"] for name in ("committed", "forced", "checked", "pending")] == [
        "producer", "operator", "check", None,
    ]  # fmt: skip
    checked = found[played["checked"]]
    assert (checked["queue_id"], checked["queue_offset"], checked["key"]) == (told["queue_id"], told["queue_offset"], "k3")
    assert checked["attempts"] == told["attempts"] >= 2
    assert checked["duration_s"] > 0


def test_ops_are_the_history_of_each_transaction(spark, service, client, played):
    histories = {id: client.transaction(id)["history"][1:] for id in played.values()}
    found = rows(spark, service, "ops")
    for name, id in played.items():
        told = [(event["event"], event.get("actor", "")) for event in histories[id]]
        said = sorted((row["op_offset"], row["op"], row["actor"] or "") for row in found if row["id"] == id)
        assert [(op, actor) for _, op, actor in said][: len(told)] == told[: len(said)], name


def test_checks_know_who_was_asked_and_how_long_the_answer_took(spark, service, played):
    found = sorted(
        (row for row in rows(spark, service, "checks") if row["id"] == played["checked"]), key=lambda row: row["attempt"]
    )
    assert [row["attempt"] for row in found] == list(range(1, len(found) + 1))
    assert [row["answer"] for row in found if row["answer"]] == ["unknown", "commit"]
    assert {row["member"] for row in found} == {"m1"}
    assert all(row["answer_s"] >= 0 for row in found if row["answer"])


def test_the_audit(spark, service, played):
    (forced,) = [row for row in rows(spark, service, "audit") if row["ids"] == [played["forced"]]]
    assert (forced["action"], forced["result"]) == ("commit", "done")
    assert sum(forced["counts"].values()) == 1


def test_filters_narrow_and_change_nothing(spark, service, played):
    for where in places(service):
        found = load(spark, "transactions", where)
        border = found.where("`group` = 'shop'").agg({"stored_at": "min"}).collect()[0][0]
        mine = [row for row in found.collect() if row.group == "shop"]
        committed = {row.id for row in found.where("`group` = 'shop' AND state = 'committed'").collect()}
        assert committed == {row.id for row in mine if row.state == "committed"}
        since = {row.id for row in found.where(f"stored_at >= TIMESTAMP '{border}' AND `group` IN ('shop')").collect()}
        assert since == {row.id for row in mine}


def test_what_spark_hands_over_is_used(spark, service, played):
    reader = escrow.spark.EscrowTransactions({"url": service.url}).reader(escrow.spark.EscrowTransactions({}).schema())
    assert isinstance(reader, tables._TableReader)
    border = load(spark, "transactions", {"url": service.url}, columns="stored_at").collect()[0].stored_at
    given = [
        EqualTo(("group",), "shop"), In(("state",), ("pending", "committed")), GreaterThanOrEqual(("stored_at",), border),
        LessThan(("stored_at",), border),
    ]  # fmt: skip
    assert reader.pushFilters(given) == given, "Spark applies them again"
    at_ms = int(border.timestamp() * 1000)
    assert reader._filters["groups"] == ["shop"]
    assert reader._filters["states"] == ["pending", "committed"]
    assert abs(reader._filters["since_ms"] - at_ms) <= 24 * 3_600_000
    assert reader._filters["until_ms"] == reader._filters["since_ms"] + 1


def test_chosen_columns_and_several_tasks(spark, service, played):
    found = load(spark, "transactions", {"path": str(service.data)}, columns="state, half_offset", tasks="3")
    assert found.columns == ["state", "half_offset"]
    assert found.count() == load(spark, "transactions", {"url": service.url}).count()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, 'give either "url"'),
        ({"url": "http://x", "path": "/y"}, 'give either "url"'),
        ({"path": "/nowhere"}, "path: /nowhere has no store of Escrow"),
        ({"url": "http://x", "columns": "state,colour"}, "has no column 'colour'"),
        ({"url": "http://x", "since": "5"}, "there is no option 'since'"),
    ],
)
def test_wrong_options(spark, given, told):
    with pytest.raises(Exception, match=told):
        load(spark, "transactions", given).collect()
