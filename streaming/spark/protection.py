"""Spark's own ports: who may talk to them, and how Spark is told what is secret.

Driver and executors deserialize Java objects from every peer that is connected to their RPC port: a peer that may choose
the object can run code in them. So every connection must prove that it knows a secret (`spark.authenticate`), in every mode:

    local[n]        driver and executor are one process. Spark makes a secret that never leaves it; ports are on loopback
    spark://…       master, workers, driver and executors share one secret: `sparkAuthSecret`, or
                    `spark.authenticate.secret` in sparkConfFile. All traffic is encrypted (AES)
    yarn, k8s       the cluster hands a secret of the application to its executors. All traffic is encrypted

Spark serves files (jars, our own code for executors) without asking for the secret: none of them is secret.

Every user of the machine can read command lines, so Spark's configuration is in none: the JVM reads a file
(`write_properties`) with mode 0600, which is removed with the run's directory.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from runtime.settings import Settings
from streaming.errors import JobCannotStart

SECRET: Final = "spark.authenticate.secret"
PROPERTIES: Final = "spark.properties"
_ON: Final = {"spark.authenticate": "true"}
_ENCRYPTED: Final = {**_ON, "spark.network.crypto.enabled": "true"}


def authentication(settings: Settings, own: Mapping[str, str]) -> dict[str, str]:
    """What Spark is told; `own` is the operator's file, which has the last word. JobCannotStart where a secret is missing."""
    if settings.spark_master.startswith("local"):
        return dict(_ON)
    if not settings.spark_master.startswith("spark://") or own.get("spark.authenticate", "").lower() == "false":
        return dict(_ENCRYPTED)
    if settings.spark_auth_secret:
        return {**_ENCRYPTED, SECRET: settings.spark_auth_secret}
    if SECRET not in own:
        raise JobCannotStart(
            f"sparkMaster: {settings.spark_master}: anyone who reaches Spark's ports could run code in the job: give master and "
            "workers a secret (spark.authenticate true, spark.authenticate.secret in their spark-defaults.conf) and set "
            "ESCROW_SPARK_AUTH_SECRET to it; or write spark.authenticate false into sparkConfFile to do without"
        )
    _check_private(settings.spark_conf_file)
    return dict(_ENCRYPTED)


def _check_private(file: str) -> None:
    if stat.S_IMODE(os.stat(file).st_mode) & 0o077:
        raise JobCannotStart(f"sparkConfFile: {file} has {SECRET} and others may read it: chmod 600 {file}")


def write_properties(conf: Mapping[str, str], run: Path) -> Path:
    """Everything that Spark is told, as a file that only this user can read."""
    path = run / PROPERTIES
    text = "".join(f"{_escaped(name, key=True)}={_escaped(value)}\n" for name, value in conf.items())
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def _escaped(text: str, *, key: bool = False) -> str:
    """As java.util.Properties reads it back."""
    made = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")
    made = re.sub(r"^ ", r"\\ ", made)
    return re.sub(r"([ =:#!])", r"\\\1", made) if key else made
