"""The barrier on every kind of connection: SQLite and PostgreSQL, plain and through SQLAlchemy. Who comes first decides, and a
local transaction that is running is never taken for one that was rolled back."""

from __future__ import annotations

import gc
import sqlite3
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from escrow import (
    AlreadyAnswered,
    Barrier,
    BarrierError,
    Check,
    Message,
    NotCommitted,
    NotInTransaction,
    Outcome,
    Producer,
    _open_transactions,
)
from escrow._databases import Sql as _Sql
from escrow.cli import main
from tests.support.postgres import postgres


@pytest.fixture(scope="module")
def cluster():
    with postgres() as running:
        yield running


@dataclass
class Database:
    """One way to connect, with a fresh table."""

    connect: Callable[[], Any]
    barrier: Barrier

    def rows(self):
        connection = self.connect()
        try:
            return [tuple(row) for row in _Sql(connection, None).run("SELECT id, state FROM escrow_barrier ORDER BY id")]
        finally:
            connection.close()


def sqlite_database(tmp_path):
    path = tmp_path / "orders.db"
    return lambda: sqlite3.connect(path, timeout=60), path


@pytest.fixture(
    params=["sqlite3", "alchemy-sqlite", "alchemy-sqlite-session", "psycopg", "alchemy-psycopg", "alchemy-psycopg-session"]
)
def database(request, tmp_path):
    kind, engine = request.param, None
    barrier = Barrier(lock_timeout_s=0.2)
    if kind == "sqlite3":
        connect, _ = sqlite_database(tmp_path)
    elif kind == "psycopg":
        connect = request.getfixturevalue("cluster").connect
    else:
        url = f"sqlite:///{tmp_path}/orders.db" if "sqlite" in kind else request.getfixturevalue("cluster").alchemy_url
        engine = sqlalchemy.create_engine(url)
        connect = (lambda: Session(engine)) if kind.endswith("session") else engine.connect
    connection = connect()
    with suppress(Exception):
        _Sql(connection, None).run("DROP TABLE escrow_barrier")
    connection.commit()
    barrier.create_table(connection)
    barrier.create_table(connection)  # again: nothing happens
    connection.close()
    yield Database(connect, barrier)
    if engine is not None:
        engine.dispose()


@contextmanager
def opened(connect):
    connection = connect()
    try:
        yield connection
    finally:
        connection.close()


def test_a_committed_transaction_is_a_commit(database):
    with opened(database.connect) as local:
        database.barrier.record(local, "tx-1")
        local.commit()
    for _ in range(2):
        assert database.barrier.answer(database.connect, "tx-1") is Outcome.COMMIT
    assert database.rows() == [("tx-1", "committed")]


def test_a_transaction_that_never_ran_is_a_rollback_and_cannot_run_later(database):
    for _ in range(2):
        assert database.barrier.answer(database.connect, "tx-1") is Outcome.ROLLBACK
    with opened(database.connect) as late:
        with pytest.raises(AlreadyAnswered, match="tx-1: a check-back has answered ROLLBACK"):
            database.barrier.record(late, "tx-1")
        late.rollback()
    assert database.rows() == [("tx-1", "rolled_back")]


def test_a_transaction_that_was_rolled_back_is_a_rollback(database):
    with opened(database.connect) as local:
        database.barrier.record(local, "tx-1")
        local.rollback()
    assert database.barrier.answer(database.connect, "tx-1") is Outcome.ROLLBACK


def test_a_running_transaction_is_unknown_and_goes_on(database):
    with opened(database.connect) as local:
        database.barrier.record(local, "tx-1")
        assert database.barrier.answer(database.connect, "tx-1") is Outcome.UNKNOWN
        local.commit()
    assert database.barrier.answer(database.connect, "tx-1") is Outcome.COMMIT


def test_a_running_transaction_that_then_rolls_back(database):
    with opened(database.connect) as local:
        database.barrier.record(local, "tx-1")
        assert database.barrier.answer(database.connect, "tx-1") is Outcome.UNKNOWN
        local.rollback()
    assert database.barrier.answer(database.connect, "tx-1") is Outcome.ROLLBACK


def test_a_check_that_waits_hears_what_became_of_it(database, request):
    """The local transaction commits while the check waits for its lock."""
    barrier = Barrier(lock_timeout_s=60)
    answers = []
    with opened(database.connect) as local:
        barrier.record(local, "tx-1")
        checking = threading.Thread(target=lambda: answers.append(barrier.answer(database.connect, "tx-1")))
        checking.start()
        local.commit()
        checking.join(60)
    assert answers == [Outcome.COMMIT]


def test_recording_twice_is_refused(database):
    with opened(database.connect) as local:
        database.barrier.record(local, "tx-1")
        with pytest.raises(AlreadyAnswered):
            database.barrier.record(local, "tx-1")
        local.rollback()
    assert database.rows() == []


def test_rows_do_not_meet(database):
    with opened(database.connect) as local:
        for number in range(3):
            database.barrier.record(local, f"tx-{number}")
        local.commit()
    assert database.barrier.answer(database.connect, "tx-3") is Outcome.ROLLBACK
    assert [state for _, state in database.rows()] == ["committed"] * 3 + ["rolled_back"]


def test_pruning(database, monkeypatch):
    now_ms = [1_700_000_000_000]
    monkeypatch.setattr("escrow.barrier._now_ms", lambda: now_ms[0])
    with opened(database.connect) as local:
        for id in ("old", "older"):
            database.barrier.record(local, id)
        local.commit()
        now_ms[0] += 31 * 24 * 3_600_000
        database.barrier.record(local, "new")
        local.commit()
        assert database.barrier.prune(local) == 2
        assert database.barrier.prune(local) == 0
        with pytest.raises(ValueError, match=r"older_than: is 1 day.*Escrow may still ask"):
            database.barrier.prune(local, timedelta(days=1))
    assert [id for id, _ in database.rows()] == ["new"]


def test_race(database):
    """Local transactions and checks at the same time: each pair agrees on one outcome."""
    ids = [f"tx-{number}" for number in range(20)]
    local, checked = {}, {}

    def run_local():
        for id in ids:
            with opened(database.connect) as connection:
                try:
                    database.barrier.record(connection, id)
                    connection.commit()
                    local[id] = True
                except AlreadyAnswered:
                    connection.rollback()
                    local[id] = False

    def run_checks():
        for id in reversed(ids):
            checked[id] = database.barrier.answer(database.connect, id)

    threads = [threading.Thread(target=target) for target in (run_local, run_checks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    states = dict(database.rows())
    for id in ids:
        expected = {"committed": Outcome.COMMIT, "rolled_back": Outcome.ROLLBACK}.get(states.get(id, ""))
        assert checked[id] in (expected, Outcome.UNKNOWN)
        assert local[id] == (states.get(id) == "committed")


# --- particular drivers ---------------------------------------------------------------------------------------------------
def test_sqlite_in_autocommit_mode_is_refused(tmp_path):
    connect, _ = sqlite_database(tmp_path)
    barrier = Barrier()
    with opened(connect) as connection:
        barrier.create_table(connection)
        connection.isolation_level = None
        with pytest.raises(NotInTransaction, match="BEGIN"):
            barrier.record(connection, "tx-1")
        connection.execute("BEGIN")
        barrier.record(connection, "tx-1")
        connection.execute("ROLLBACK")
    assert barrier.answer(connect, "tx-1") is Outcome.ROLLBACK


def test_psycopg_in_autocommit_mode_needs_a_block_and_checks_keep_their_timeout(cluster):
    barrier = Barrier(lock_timeout_s=0.2)
    with cluster.connect(autocommit=True) as connection:
        barrier.create_table(connection)
        with pytest.raises(NotInTransaction):
            barrier.record(connection, "auto-1")
        with connection.transaction():
            barrier.record(connection, "auto-1")
            assert barrier.answer(lambda: cluster.connect(autocommit=True), "auto-1") is Outcome.UNKNOWN
    assert barrier.answer(lambda: cluster.connect(autocommit=True), "auto-1") is Outcome.COMMIT
    assert barrier.answer(lambda: cluster.connect(autocommit=True), "auto-2") is Outcome.ROLLBACK
    assert barrier.answer(cluster.connect, "auto-2") is Outcome.ROLLBACK


def test_alchemy_in_autocommit_mode_is_refused(tmp_path):
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/orders.db", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        Barrier().create_table(connection)
        with pytest.raises(NotInTransaction):
            Barrier().record(connection, "tx-1")
    engine.dispose()


def test_a_context_manager_for_connections_is_entered_and_left(cluster):
    left = []

    @contextmanager
    def pooled():
        with cluster.connect() as connection:
            yield connection
        left.append(True)

    with cluster.connect() as connection:
        Barrier().create_table(connection)
    assert Barrier().answer(pooled, "pooled-1") is Outcome.ROLLBACK
    assert left == [True]


def test_over_the_unix_socket(cluster):
    import psycopg

    with psycopg.connect(cluster.socket_dsn) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_missing_table_is_an_error_and_not_an_answer(tmp_path, cluster):
    connect, _ = sqlite_database(tmp_path)
    for connecting in (connect, cluster.connect):
        with pytest.raises(Exception, match=r"no such table|does not exist"):
            Barrier("other_barrier").answer(connecting, "tx-1")


def test_a_foreign_state_is_an_error(tmp_path):
    connect, _ = sqlite_database(tmp_path)
    with opened(connect) as connection:
        Barrier().create_table(connection)
        connection.execute("INSERT INTO escrow_barrier VALUES ('tx-1', 'maybe', 0)")
        connection.commit()
    with pytest.raises(BarrierError, match=r"escrow_barrier\.state: is 'maybe' for tx-1"):
        Barrier().answer(connect, "tx-1")


# --- paramstyles ----------------------------------------------------------------------------------------------------------
class OtherCursor:
    def __init__(self, style):
        self.style, self.description, self.rowcount = style, None, 0

    def execute(self, statement, parameters):
        self.style.ran = (statement, parameters)

    def close(self):
        pass


class OtherConnection:
    """A driver that notes what it is given."""

    def __init__(self):
        self.ran: Any = None

    def cursor(self):
        return OtherCursor(self)

    def commit(self):
        pass


PARAMETERS = {
    "qmark": ("(?, ?, ?)", ("x", "committed", 5)),
    "format": ("(%s, %s, %s)", ("x", "committed", 5)),
    "numeric": ("(:1, :2, :3)", ("x", "committed", 5)),
    "named": ("(:id, :state, :now_ms)", {"id": "x", "state": "committed", "now_ms": 5}),
    "pyformat": ("(%(id)s, %(state)s, %(now_ms)s)", {"id": "x", "state": "committed", "now_ms": 5}),
}


@pytest.mark.parametrize("style", PARAMETERS)
@pytest.mark.parametrize("known_by", ["module", "argument"])
def test_parameters_are_written_as_the_driver_wants_them(monkeypatch, style, known_by):
    monkeypatch.setattr("escrow.barrier._now_ms", lambda: 5)
    module = ModuleType("otherdriver")
    monkeypatch.setitem(sys.modules, "otherdriver", module)
    monkeypatch.setattr(OtherConnection, "__module__", "otherdriver.connections")
    if known_by == "module":
        monkeypatch.setattr(module, "paramstyle", style, raising=False)
    connection = OtherConnection()
    Barrier(paramstyle=style if known_by == "argument" else None).record(connection, "x")
    values, parameters = PARAMETERS[style]
    assert connection.ran == (f"INSERT INTO escrow_barrier (id, state, created_at_ms) VALUES {values}", parameters)


def test_a_driver_that_says_nothing_needs_an_argument(monkeypatch):
    monkeypatch.setattr(OtherConnection, "__module__", "silentdriver")
    with pytest.raises(ValueError, match=r"paramstyle: module silentdriver .* Barrier\(paramstyle=…\)"):
        Barrier().record(OtherConnection(), "x")


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="paramstyle: 'sql' is not one of qmark"):
        Barrier(paramstyle="sql")
    with pytest.raises(ValueError, match=r"table: .* is not a plain name"):
        Barrier("orders; DROP TABLE orders")
    Barrier("shop.escrow_barrier")


# --- with a producer ------------------------------------------------------------------------------------------------------
def test_a_producer_answers_from_the_barrier(escrow, tmp_path):
    connect, _ = sqlite_database(tmp_path)
    barrier = Barrier()
    with opened(connect) as connection:
        barrier.create_table(connection)
    with Producer(escrow.url, "orders", on_check=barrier.listener(connect)) as producer:
        committed, lost = producer.send_halves([Message("paid", "a"), Message("paid", "b")])
        with opened(connect) as local:
            barrier.record(local, committed.id)
            local.commit()
        for half in (committed, lost):
            escrow.ask(half.id)
        escrow.until(lambda: all(half.state != "PREPARED" for half in escrow.halves.values()))
    assert (escrow.halves[committed.id].state, escrow.halves[lost.id].state) == ("COMMITTED", "ROLLED_BACK")


def test_the_listener_takes_a_check(tmp_path):
    connect, _ = sqlite_database(tmp_path)
    barrier = Barrier()
    with opened(connect) as connection:
        barrier.create_table(connection)
    check = Check("tx-9", "orders", "paid", b"", "", "", {}, 1, 0, 0)
    assert barrier.listener(connect)(check) is Outcome.ROLLBACK


# --- COMMIT before the database's commit ----------------------------------------------------------------------------------
def test_commit_before_the_databases_commit_is_refused(database, escrow):
    """The outcome is UNKNOWN, the error names the remedy, and check-back finds the truth."""
    with Producer(escrow.url, "orders", on_check=database.barrier.listener(database.connect)) as producer:

        def handler(local):
            with producer.transaction(Message("paid", "order")) as tx:
                database.barrier.record(local, tx.id)

        with opened(database.connect) as local:
            with pytest.raises(NotCommitted, match="is still open"):
                handler(local)
            local.rollback()
        [id] = escrow.halves
        escrow.until(lambda: escrow.halves[id].ends)
        assert [end["outcome"] for end in escrow.halves[id].ends] == ["unknown"]
        assert escrow.halves[id].ends[0]["remark"].startswith("NotCommitted: ")
        escrow.ask(id)
        escrow.until(lambda: escrow.halves[id].state == "ROLLED_BACK")


def test_commit_after_the_databases_commit_is_said_though_another_transaction_reads(database, escrow):
    def place(message, local):
        database.barrier.record(local, message.transaction_id)
        local.commit()
        _Sql(local, None).run("SELECT count(*) FROM escrow_barrier")
        return Outcome.COMMIT

    with Producer(escrow.url, "orders") as producer, opened(database.connect) as local:
        assert producer.send_in_transaction(Message("paid", "order"), place, local).committed
        local.rollback()


def test_a_local_transaction_that_returns_commit_too_early_is_refused(database, escrow):
    def place(message, local):
        database.barrier.record(local, message.transaction_id)
        return Outcome.COMMIT

    with Producer(escrow.url, "orders") as producer, opened(database.connect) as local:
        with pytest.raises(NotCommitted):
            producer.send_in_transaction(Message("paid", "order"), place, local)
        local.rollback()


def test_an_end_by_hand_before_the_databases_commit_is_refused_and_nothing_is_sent(database, escrow):
    with Producer(escrow.url, "orders") as producer, opened(database.connect) as local:
        half = producer.send_half(Message("paid", "order"))
        database.barrier.record(local, half.id)
        with pytest.raises(NotCommitted):
            producer.end(half.id, Outcome.COMMIT)
        assert escrow.calls_to("/v1/ends") == []
        local.commit()
        assert producer.end(half.id, Outcome.COMMIT).stands


def test_a_connection_that_is_gone_is_not_kept_for_the_outcome(database):
    local = database.connect()
    database.barrier.record(local, "tx-1")
    probe = _open_transactions.forget("tx-1")
    if isinstance(local, sqlite3.Connection):
        local.close()
    else:
        gone = weakref.ref(local)
        local.close()
        del local
        gc.collect()
        assert gone() is None
    assert not _open_transactions.is_open(probe)


# --- the table ------------------------------------------------------------------------------------------------------------
def test_the_callers_transaction_is_not_committed(database):
    """Neither by making the table nor by pruning it."""
    with opened(database.connect) as local:
        database.barrier.record(local, "tx-1")
        database.barrier.create_table(local)
        database.barrier.prune(local)
        local.rollback()
    assert database.rows() == []


def test_the_ddl_is_what_create_table_runs(tmp_path):
    connect, _ = sqlite_database(tmp_path)
    with opened(connect) as db:
        db.execute(Barrier("rows").ddl("sqlite"))
        Barrier("rows").record(db, "tx-1")
    with pytest.raises(ValueError, match="dialect: 'oracle' is not one of postgresql, mysql, sqlite"):
        Barrier().ddl("oracle")


@pytest.mark.parametrize("id", ["", None, 7])
def test_an_id_that_is_none_is_refused_by_name(tmp_path, id):
    connect, _ = sqlite_database(tmp_path)
    with opened(connect) as db, pytest.raises(TypeError, match=r"id: is .*; pass the id of the half"):
        Barrier().record(db, id)


def test_the_command_prints_the_ddl(capsys):
    assert main(["barrier", "ddl", "mysql", "--table", "shop.rows"]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{Barrier('shop.rows').ddl('mysql')};\n"
    assert printed.startswith("CREATE TABLE IF NOT EXISTS shop.rows (")
    assert main(["barrier", "ddl", "mysql", "--table", "a;b"]) == 2
