"""What Spark is told about secrets, and where it stands."""

from __future__ import annotations

import pytest

from runtime.settings import load
from streaming.errors import JobCannotStart
from streaming.spark.protection import SECRET, authentication, write_properties
from streaming.spark.session import spark_conf

KAFKA = ("mode=kafka", "kafkaBootstrapServers=127.0.0.1:9092")


def settings_of(tmp_path, *flags):
    return load(None, [f"dataDir={tmp_path}", *flags], {})


def test_embedded_spark_authenticates_on_loopback(tmp_path):
    conf = spark_conf(settings_of(tmp_path), tmp_path, tmp_path / "log4j")
    assert conf["spark.authenticate"] == "true"
    assert conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert SECRET not in conf  # Spark makes one for itself
    assert authentication(settings_of(tmp_path, *KAFKA, "sparkMaster=local[2]"), {}) == {"spark.authenticate": "true"}


def test_a_standalone_cluster_needs_a_secret_and_encrypts(tmp_path):
    master = "sparkMaster=spark://a:7077"
    with pytest.raises(JobCannotStart, match="ESCROW_SPARK_AUTH_SECRET"):
        authentication(settings_of(tmp_path, *KAFKA, master), {})
    conf = authentication(settings_of(tmp_path, *KAFKA, master, "sparkAuthSecret=hidden"), {})
    assert (conf["spark.authenticate"], conf["spark.network.crypto.enabled"], conf[SECRET]) == ("true", "true", "hidden")


def test_a_secret_in_a_file_that_others_may_read_is_refused(tmp_path):
    file = tmp_path / "spark.conf"
    file.write_text(f"{SECRET} hidden\n")
    settings = settings_of(tmp_path, *KAFKA, "sparkMaster=spark://a:7077", f"sparkConfFile={file}")
    file.chmod(0o644)
    with pytest.raises(JobCannotStart, match="chmod 600"):
        authentication(settings, {SECRET: "hidden"})
    file.chmod(0o600)
    assert authentication(settings, {SECRET: "hidden"})["spark.network.crypto.enabled"] == "true"


def test_an_operator_may_do_without(tmp_path):
    own = {"spark.authenticate": "false"}
    authentication(settings_of(tmp_path, *KAFKA, "sparkMaster=spark://a:7077"), own)


@pytest.mark.parametrize("master", ["yarn", "k8s://https://api:6443"])
def test_other_clusters_hand_out_secrets_themselves(tmp_path, master):
    conf = authentication(settings_of(tmp_path, *KAFKA, f"sparkMaster={master}"), {})
    assert conf == {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}


def test_the_file_is_for_nobody_else_and_java_reads_it_back(tmp_path):
    given = {"spark.a": 'one "two" = three:#!', "spark.b": "back\\slash", "spark.c": " lead", "spark.d": "two\nlines\t."}
    file = write_properties(given, tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().splitlines() == [
        'spark.a=one "two" = three:#!', r"spark.b=back\\slash", r"spark.c=\ lead", r"spark.d=two\nlines\t.",
    ]  # fmt: skip
