"""The job's process: `python -m streaming.job --config FILE`, started and watched by `escrow run`.

On stdout it prints one JSON line when it settles: {"ready": true, "metrics_port": …}; and {"waiting": true,
"notice": why} when it has to wait for room on the disk, false when it continues. Why it could not start, or why it ended
without being asked to, is one line on stderr. Exit status: 1; 2 if a restart does not help until something is changed; 75
if there was no room. SIGTERM and SIGINT: stop the query, flush, close the store, exit status 0.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from runtime.settings import PRIVATE_UMASK, Settings, SettingsError, from_arguments
from runtime.tracing import TracingError
from sinks.errors import SinkError
from store.errors import CursorBeyondLog, ForeignFile, FormatTooNew, GeometryMismatch, NoRoom, NotAStore, StoreError
from store.io.descriptors import few_files, raise_file_limit
from streaming.errors import JavaDied, JobCannotStart, JobError
from streaming.lifecycle import LeasedService, Service
from streaming.metrics_page import serve_metrics
from streaming.service import JobService
from streaming.settlement.disk_room import Room, for_lack_of_room
from streaming.spark.session import java_death, make_run_directory, one_line, start_spark

LOOK_S: Final = 0.5
CLOCK_JUMPED: Final = "the wall clock jumped: nothing is discarded or deleted; see escrow clock"
SPARK_STOP_S: Final = 1.0
#: Without the lease after this long a driver is a standby, and says so; sooner where Kafka has told it that another has it.
STANDBY_AFTER_S: Final = 15.0
#: A restart does not help until something is changed.
USELESS: Final = 2
#: There was no room on the disk (EX_TEMPFAIL): a restart helps once there is room.
NO_ROOM_EXIT: Final = 75


class _Asked(BaseException):
    """SIGTERM or SIGINT came while the job was still starting."""


class _Signals:
    """Turns SIGTERM and SIGINT into `asked`; during the start, into an exception that ends it at once."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.raising = True
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.asked.set()
        if self.raising:
            self.raising = False
            raise _Asked


def main(argv: Sequence[str] | None = None) -> int:
    signals = _Signals()
    os.umask(PRIVATE_UMASK)
    try:
        settings = from_arguments(argv, prog="python -m streaming.job")
        _log_to(settings)
        if few := few_files(raise_file_limit()):
            _notice(few)
        return _run(settings, signals)
    except _Asked:
        return 0
    except SettingsError as error:
        return _fail("; ".join(error.problems), USELESS)
    except (
        NotAStore,
        FormatTooNew,
        GeometryMismatch,
        ForeignFile,
        CursorBeyondLog,
        SinkError,
        JobCannotStart,
        TracingError,
    ) as error:
        return _fail(str(error), USELESS)
    except (StoreError, JobError, OSError) as error:
        return _fail(str(error), _status(error, settings))


def _status(failure: object, settings: Settings) -> int:
    """Whether it died for lack of room: then it is started again until there is some, and waits for it."""
    directories = (settings.store_dir, settings.spark_dir, settings.log_dir)
    return NO_ROOM_EXIT if for_lack_of_room(failure, directories) else 1


def _run(settings: Settings, signals: _Signals) -> int:
    """1 store · 2 metrics · 3 Spark · 4 query · 5 ready · 6 until asked or failed · 7 stop, last things first."""
    room = Room(settings.store_dir, signals.asked, _waiting)
    service = _service(settings, room)  # 1
    spark: SparkSession | None = None
    try:
        port = serve_metrics(settings, service.metrics.registry) if settings.metrics_enabled else 0  # 2
        if not room.for_spark(settings.spark_dir):
            return 0
        room.found()
        run = make_run_directory(settings)
        if not isinstance(service, JobService):
            service.ask_for_lease()
            # While Kafka decides who is the master; on a cluster a standby would hold executors that the master needs.
            spark = start_spark(settings, run) if settings.spark_master.startswith("local") else None
            if not service.take_over(timeout_s=STANDBY_AFTER_S) and not _stand_by(service, spark, signals, port):
                return 0
        spark = spark or start_spark(settings, run)  # 3
        if url := spark.sparkContext.uiWebUrl:
            _notice(f"Spark's web UI: {url}/StreamingQuery/ (query escrow)")
        _start(service, spark, run)  # 4
        print(json.dumps({"ready": True, "metrics_port": port}), flush=True)  # 5
        signals.raising = False
        service.warm_up_beside()
        failure = _watch(service, spark, signals)  # 6
    finally:
        signals.raising = False
        service.stop()  # 7
        if spark is not None:
            _stop_spark(spark)
    return 0 if failure is None else _fail(failure, _status(failure, settings))


def _service(settings: Settings, room: Room) -> JobService | LeasedService:
    while True:
        try:
            return _made(settings)
        except NoRoom as error:  # recovery writes, too
            if not room.wait(error):
                raise _Asked from None


def _made(settings: Settings) -> JobService | LeasedService:
    if settings.mode == "embedded":
        return JobService(settings, tell=_waiting)
    try:
        from streaming.kafka.service import KafkaJobService  # noqa: PLC0415 - an embedded install need not have Kafka's client
    except ModuleNotFoundError as error:
        raise JobCannotStart(
            f"Kafka mode needs the Python package {error.name}: in a checkout of Escrow, pip install ./sdk '.[kafka]'"
        ) from error
    return KafkaJobService(settings, tell=_waiting)


def _stand_by(service: LeasedService, spark: SparkSession | None, signals: _Signals, port: int) -> bool:
    """Until this driver is the master; False where it was asked to stop before. A standby is ready for its work: to wait."""
    _notice(f"standby: {service.why_waiting()}")
    print(json.dumps({"ready": True, "metrics_port": port}), flush=True)
    jvm = _jvm(spark) if spark is not None else None
    signals.raising = False
    taken = service.take_over(lambda: not signals.asked.is_set() and (jvm is None or jvm.poll() is None))
    signals.raising = True
    if signals.asked.is_set():
        return False
    if not taken and spark is not None:
        raise JavaDied(java_death(spark.sparkContext._gateway))
    _notice("the master is gone: this driver takes over")
    return True


def _start(service: Service, spark: SparkSession, run: Path) -> None:
    """The query and its first batch. If Java dies meanwhile, the error says so, instead of naming one of the consequences."""
    try:
        service.start(spark, run / "checkpoint")
        service.first_batch()
    except (JobError, Py4JError, OSError, PySparkException) as error:
        raise JavaDied(java_death(spark.sparkContext._gateway) or one_line(error)) from error


def _watch(service: Service, spark: SparkSession, signals: _Signals) -> str | None:
    jvm, alerted = _jvm(spark), False
    while not signals.asked.wait(LOOK_S):
        if service.clock.alert != alerted:
            alerted = service.clock.alert
            _notice(CLOCK_JUMPED if alerted else "the clock alert is over: discards and retention go on")
        try:
            failure = service.failure()
        except (Py4JError, OSError) as error:
            failure = f"the Java side of Spark does not answer: {error}"
        if jvm is not None and (failure is not None or jvm.poll() is not None):
            # When Java dies, every other symptom is a consequence.
            failure = java_death(spark.sparkContext._gateway) or failure
        if failure is not None:
            return failure
    return None


def _waiting(text: str, waiting: bool) -> None:
    """What `Room` tells: why it waits, and that it does not any more."""
    print(json.dumps({"notice": text, "waiting": waiting}), flush=True)


def _notice(text: str) -> None:
    """A line for the operator's terminal: the supervisor passes it on."""
    print(json.dumps({"notice": text}), flush=True)


def _stop_spark(spark: SparkSession) -> None:
    """Spark holds nothing that matters any more: it gets a moment to end in order, then it is ended."""
    jvm = _jvm(spark)
    # PySpark's own threads print tracebacks when the Java side goes away under them; `_fail` has the real stderr.
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    stopper = threading.Thread(target=_stop_quietly, args=(spark,), daemon=True)
    stopper.start()
    stopper.join(SPARK_STOP_S)
    if jvm is not None and jvm.poll() is None:
        jvm.kill()
        jvm.wait()


def _stop_quietly(spark: SparkSession) -> None:
    with contextlib.suppress(Exception):
        spark.stop()


def _jvm(spark: SparkSession) -> Any:
    return getattr(spark.sparkContext._gateway, "proc", None)


def _log_to(settings: Settings) -> None:
    settings.log_dir.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        settings.log_dir / "job-events.log", maxBytes=settings.log_file_bytes, backupCount=settings.log_files, delay=True
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def _fail(reason: str, status: int = 1) -> int:
    # The name in front tells the supervisor which line is the reason: PySpark's threads may print tracebacks of their own.
    print(f"escrow job: {' '.join(reason.split())}", file=sys.__stderr__, flush=True)
    return status


@contextlib.contextmanager
def _exit_for_sure() -> Iterator[None]:
    """Py4J's threads must not keep the process once everything is closed."""
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    with _exit_for_sure():
        status = main()
    os._exit(status)
