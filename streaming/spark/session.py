"""The Spark session of the job: its settings, each with its reason, its log and its scratch directory.

Nothing that Spark keeps on disk is truth. Every start gets a new directory `run-…` under dataDir/spark with checkpoint, scratch and
warehouse in it; those of earlier starts are removed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import IO, Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from runtime.settings import Settings
from streaming.errors import JavaDied, JobCannotStart
from streaming.spark.jars import connector_jars
from streaming.spark.protection import authentication, write_properties

APPLICATION: Final = "escrow"
RUN_PREFIX: Final = "run-"
JVM_OUTPUT: Final = "spark-jvm.log"
JVM_DEATH_S: Final = 1.0

#: One task a batch, tiny plans, no history: everything that Spark would keep or plan for bigger work is off.
FIXED: Final[Mapping[str, str]] = {
    "spark.app.name": APPLICATION,
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    "spark.ui.retainedDeadExecutors": "5",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.ui.retainedQueries": "2",
    "spark.sql.streaming.ui.retainedProgressUpdates": "20",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.sql.streaming.minBatchesToRetain": "10",
    # The default waits for ever.
    "spark.sql.streaming.stopTimeout": "3s",
    # The source waits for news itself (streaming/spark/source.py).
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Without stateful operators of Spark's own one watermark will do. The default keeps an entry a batch in the driver for ever
    # when progress is tracked asynchronously (seen in heap dumps of a soak: about 100 MB a day).
    "spark.sql.streaming.statefulOperator.allowMultiple": "false",
    "spark.sql.adaptive.enabled": "false",
    # A plan without expressions gains nothing from generated code.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.pyspark.toArrow.selfDestruct.enabled": "false",
    # A retry could not help: the batch is settled by the driver, and the driver starts anew.
    "spark.task.maxFailures": "2",
    "spark.python.worker.faulthandler.enabled": "true",
    # Its RPC port takes Java objects: of ourselves only (streaming/spark/protection.py).
    "spark.authenticate": "true",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.eventLog.enabled": "false",
    # What is promoted between two full collections is touched memory: seldom enough not to be felt, often enough to stay small.
    "spark.cleaner.periodicGC.interval": "10min",
}


def make_run_directory(settings: Settings) -> Path:
    """A new directory for this start; what earlier ones left behind goes. (The job's lock keeps a second job out.)"""
    settings.spark_dir.mkdir(parents=True, exist_ok=True)
    for left in settings.spark_dir.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
    return Path(tempfile.mkdtemp(prefix=RUN_PREFIX, dir=settings.spark_dir))


TASK_ATTEMPTS: Final = 4
#: Kafka mode: real plans over real data, perhaps on other machines.
KAFKA: Final[Mapping[str, str]] = {
    # Asking the brokers for news has a price.
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    # Rows without bodies, and small (kafka_records.columns_of sees to that): they need no limit in bytes as well, which Spark would
    # compute anew for every row (a quarter of the source's time).
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # A task that lost its executor is started on another; what it does is fenced and idempotent.
    "spark.task.maxFailures": str(TASK_ATTEMPTS),
    "spark.redaction.regex": "(?i)secret|password|token|jaas|keystore|truststore",
}


def kafka_conf(settings: Settings) -> dict[str, str]:
    """What Spark is told besides in Kafka mode: the connector's jars, how executors reach us, and the operator's own file."""
    local = settings.spark_master.startswith("local")
    conf = {
        **KAFKA,
        # local[n] knows no second attempt, whatever maxFailures says: a Python worker that dies would end the job.
        "spark.master": re.sub(r"^local\[([^,\]]+)\]$", rf"local[\1,{TASK_ATTEMPTS}]", settings.spark_master),
        "spark.jars": ",".join(str(jar) for jar in connector_jars(settings.kafka_jars_dir)),
        "spark.driver.host": settings.spark_driver_host,
        "spark.driver.bindAddress": "127.0.0.1" if local or settings.spark_driver_host == "127.0.0.1" else "0.0.0.0",
    }
    if local:
        conf["spark.python.daemon.module"] = "streaming.spark.worker_daemon"
    else:
        # Executors are other processes, perhaps on other machines, which have their own temporary directory and their own Python.
        conf["spark.executor.memory"] = f"{settings.spark_executor_memory_bytes >> 20}m"
    own = own_conf(settings.spark_conf_file)
    return conf | authentication(settings, own) | own


def own_conf(file: str) -> dict[str, str]:
    """spark-defaults.conf as Spark reads it: a name, white space, a value."""
    if not file:
        return {}
    try:
        lines = Path(file).read_text().splitlines()
    except OSError as error:
        raise JobCannotStart(f"{file}: {error.strerror}: give this user access to it, or empty sparkConfFile") from error
    words = [line.split(None, 1) for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return {name: value.strip() for name, value in (word for word in words if len(word) == 2)}


def ship_package(spark: SparkSession, run: Path) -> None:
    """Executors on other machines get our own code as a zip; numpy, pyarrow and confluent-kafka must be in their Python."""
    zipped = run / "escrow-package.zip"
    with zipfile.ZipFile(zipped, "w") as archive:
        for room in ("runtime", "store", "checker", "sinks", "streaming"):
            root = Path(str(resources.files(room)))
            for file in sorted(root.rglob("*.py")):
                archive.write(file, Path(room) / file.relative_to(root))
    spark.sparkContext.addPyFile(str(zipped))


def spark_conf(settings: Settings, run: Path, log4j: Path) -> dict[str, str]:
    """Everything that Spark is told."""
    log = settings.log_dir / "spark.log"
    java = [
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        f"-Descrow.log={log}",
        f"-Descrow.log.bytes={settings.log_file_bytes}",
        f"-Descrow.log.files={settings.log_files}",
        f"-Djava.io.tmpdir={run}",
        # Small heap, small batches, two cores. One run each on a loaded machine, without generated code: with the first compiler
        # alone the median of the first 50 batches was 56 ms instead of 152, and a later batch took 33 ms of Java's CPU instead of
        # 38. A big backlog was not faster with it. To be measured again on a quiet machine; the collector was not compared.
        *(["-XX:TieredStopAtLevel=1"] if settings.mode == "embedded" else _roomy(settings)),
        "-XX:+UseSerialGC",
        "-Xss512k",
    ]
    return {
        **FIXED,
        "spark.master": settings.spark_master,
        "spark.driver.memory": f"{settings.spark_driver_memory_bytes >> 20}m",
        "spark.ui.enabled": str(settings.spark_ui_port > 0).lower(),
        "spark.ui.port": str(settings.spark_ui_port or 4040),
        "spark.local.dir": str(run),
        "spark.sql.warehouse.dir": (run / "warehouse").as_uri(),
        "spark.pyspark.python": _executors_python(settings),
        "spark.pyspark.driver.python": sys.executable,
        "spark.driver.extraJavaOptions": " ".join(_quoted(word) for word in java),
        **(kafka_conf(settings) if settings.mode == "kafka" else {}),
    }


def _executors_python(settings: Settings) -> str:
    """On this machine our own; on a cluster PYSPARK_PYTHON, or `spark.pyspark.python` of sparkConfFile, which comes first."""
    own = None if settings.spark_master.startswith("local") else os.environ.get("PYSPARK_PYTHON")
    return own or sys.executable


def _roomy(settings: Settings) -> list[str]:
    """Kafka mode: the whole heap from the beginning, half of it for what is new. A heap that starts small grows by full
    collections, and what a fetch has brought (1 MiB for each partition) is copied again and again where there is little room."""
    return [f"-Xms{settings.spark_driver_memory_bytes >> 20}m", "-XX:NewRatio=1"]


def _quoted(word: str) -> str:
    return f'"{word}"' if " " in word else word


def start_spark(settings: Settings, run: Path) -> SparkSession:
    """A session in this process. What the JVM says goes into the log directory, not to the terminal."""
    settings.log_dir.mkdir(parents=True, exist_ok=True)
    # Another Spark's settings must not leak in, and no cluster's resolver is needed for one machine.
    os.environ.pop("SPARK_HOME", None)
    os.environ["SPARK_LOCAL_IP"] = settings.spark_driver_host
    # Glibc keeps an arena for each thread otherwise: the JVM's native memory creeps.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise JobCannotStart("no Java was found: install a Java 17 runtime, or set JAVA_HOME")
    told = spark_conf(settings, run, _log4j_file(run))
    # PySpark asks the variable, not its own setting, which Python the executors start.
    os.environ["PYSPARK_PYTHON"], os.environ["PYSPARK_DRIVER_PYTHON"] = told["spark.pyspark.python"], sys.executable
    conf = SparkConf(loadDefaults=False).setAll(list(told.items()))
    with open(settings.log_dir / JVM_OUTPUT, "wb") as output:
        gateway = _gateway(write_properties(told, run), output)
        try:
            spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
        except Exception as error:
            # Whatever it says, the first question is whether Java still lives; Py4J tells of broken connections only.
            death = java_death(gateway)
            gateway.proc.kill()
            raise JavaDied(death or f"Spark did not start: {one_line(error)}") from error
    if not settings.spark_master.startswith("local"):
        ship_package(spark, run)
    return spark


def _gateway(properties: Path, output: IO[bytes]) -> Any:
    """The JVM. What it is told stands in a file, not in its command line, which everybody can read."""
    launch: Any = launch_gateway
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {shlex.quote(str(properties))} pyspark-shell"
    try:
        return launch(popen_kwargs={"stdout": output, "stderr": output})
    except Exception as error:
        raise JavaDied(f"the Java side of Spark did not start ({_last_line(Path(output.name)) or one_line(error)})") from error
    finally:
        del os.environ["PYSPARK_SUBMIT_ARGS"]


def java_death(gateway: Any) -> str:
    """How the Java side ended; "" while it lives. Its death is seen a moment after its consequences."""
    process = getattr(gateway, "proc", None)
    if process is None:
        return ""
    try:
        return f"the Java side of Spark ended with status {process.wait(JVM_DEATH_S)}"
    except subprocess.TimeoutExpired:
        return ""


def why_ended(query: StreamingQuery) -> str | None:
    """Why a query has ended; None while it runs."""
    if query.isActive:
        return None
    cause = query.exception()
    return one_line(cause) if cause is not None else "the query ended"


def one_line(error: BaseException) -> str:
    text = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return f"{lines[-1]}; all of it: {path}" if lines else ""


def _log4j_file(run: Path) -> Path:
    """log4j2.properties as a file, wherever the package lies."""
    path = run / "log4j2.properties"
    path.write_bytes(resources.files("streaming.spark").joinpath("log4j2.properties").read_bytes())
    return path
