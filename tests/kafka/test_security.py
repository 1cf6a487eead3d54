"""A broker with TLS, SCRAM and ACLs. Endpoint and job have the rights that docs/kafka.md lists, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from tests.support.certificates import Authority
from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.endpoint import ROOT, Endpoint
from tests.support.kafka import Cluster, Security, kafka_cluster
from tests.support.kafka_world import Job, KafkaWorld, bodies

pytestmark = pytest.mark.timeout(900)
USER, PASSWORD = "escrow", "over-the-wire"
GROUP = "orders"


@pytest.fixture(scope="module")
def security(tmp_path_factory: pytest.TempPathFactory) -> Security:
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    return Security({USER: PASSWORD}, authority.cert, authority.issue("broker"))


@pytest.fixture(scope="module")
def secured(security: Security) -> Iterator[Cluster]:
    with kafka_cluster(security=security) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def world(secured: Cluster, security: Security) -> Iterator[KafkaWorld]:
    login = [
        f"kafkaBootstrapServers={secured.tls_bootstrap}",
        "kafkaSecurityProtocol=SASL_SSL",
        "kafkaSaslMechanism=SCRAM-SHA-512",
        f"kafkaSaslUsername={USER}",
        f"kafkaTlsCaFile={security.authority}",
    ]
    with KafkaWorld(secured, 1, [*login, f"idKeys={'5e' * 32}", "kafkaRetryInterval=1s", "listenPort=0"]) as world:
        grant_what_the_page_says(world)
        secured.create_topic("paid")
        grant(secured, ResourceType.TOPIC, "paid", "WRITE")
        yield world


@pytest.fixture(scope="module")
def job(world: KafkaWorld) -> Job:
    secret = world.root / "password"
    secret.write_text(f"{PASSWORD}\n")
    return world.start(flags=[f"kafkaSaslPasswordFile={secret}"])


@pytest.fixture(scope="module")
def client(world: KafkaWorld) -> Iterator[EdgeClient]:
    endpoint = Endpoint(world.root / "edge", *world.flags, environment={"ESCROW_KAFKA_SASL_PASSWORD": PASSWORD})
    with endpoint, EdgeClient(endpoint.port) as client:
        yield client


def grant(cluster: Cluster, kind: ResourceType, name: str, *operations: str, prefixed: bool = False) -> None:
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    bindings = [
        AclBinding(kind, name, pattern, f"User:{USER}", "*", AclOperation[operation], AclPermissionType.ALLOW)
        for operation in operations
    ]
    admin = cluster.admin()
    for done in admin.create_acls(bindings).values():
        done.result(60)


def grant_what_the_page_says(world: KafkaWorld) -> None:
    for topic in (world.half, world.op, world.redo, world.check, world.discard, world.lease, world.ends, world.keys):
        grant(world.cluster, ResourceType.TOPIC, topic, "CREATE", "ALTER", "DESCRIBE_CONFIGS", "READ", "WRITE")
    grant(world.cluster, ResourceType.GROUP, f"{world.name}-lease", "READ")
    grant(world.cluster, ResourceType.GROUP, world.check_prefix, "READ", prefixed=True)
    grant(world.cluster, ResourceType.GROUP, "escrow-reads-only", "DESCRIBE")
    grant(world.cluster, ResourceType.TRANSACTIONAL_ID, f"{world.name}-", "WRITE", prefixed=True)


def half(topic: str, text: str) -> dict[str, str]:
    return {"group": GROUP, "topic": topic, "text": text}


def undeliverable(job: Job) -> float:
    port = next(line["metrics_port"] for line in job.lines if line.get("ready"))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("escrow_kafka_undeliverable{"))


def test_endpoint_and_job_do_their_work_with_the_documented_rights(world: KafkaWorld, job: Job, client: EdgeClient) -> None:
    ids = client.prepare([half("paid", f"by the endpoint {number}") for number in range(3)])
    assert [
        client.end(GROUP, id, outcome)["verdict"] for id, outcome in zip(ids, ("commit", "rollback", "commit"), strict=True)
    ] == ["accepted"] * 3
    world.say(world.prepare(b"straight", "paid"), "COMMIT")
    assert bodies(world.await_released("paid", 3)) == {b"by the endpoint 0": 1, b"by the endpoint 2": 1, b"straight": 1}
    for file in [*(job.directory / "logs").iterdir(), job.directory / "stderr"]:
        assert PASSWORD not in file.read_text(errors="replace"), file.name


def test_a_topic_that_acls_forbid_waits_on_a_list_and_is_released_once_it_is_allowed(
    world: KafkaWorld, job: Job, client: EdgeClient
) -> None:
    for topic in ("hidden", "forbidden", "allowed"):
        world.cluster.create_topic(topic)
    grant(world.cluster, ResourceType.TOPIC, "forbidden", "DESCRIBE")
    grant(world.cluster, ResourceType.TOPIC, "allowed", "WRITE")
    for topic in ("hidden", "forbidden"):
        with pytest.raises(RemoteError) as refused:
            client.prepare([half(topic, "by the endpoint")])
        assert (refused.value.status, refused.value.code) == (403, "kafka_refused")
    refused_places = [world.prepare(topic.encode(), topic) for topic in ("hidden", "forbidden")]
    fine = [world.prepare(b"fine %d" % number, "allowed") for number in range(10)]
    for place in [*refused_places, *fine]:
        world.say(place, "COMMIT")
    assert len(world.await_released("allowed", 10)) == 10
    world.await_that(lambda: undeliverable(job), lambda found: found == 2)
    assert [len(world.released(topic)) for topic in ("hidden", "forbidden")] == [0, 0]
    for topic in ("hidden", "forbidden"):
        grant(world.cluster, ResourceType.TOPIC, topic, "WRITE")
        world.await_released(topic, 1)
    world.await_that(lambda: undeliverable(job), lambda found: found == 0)
    assert len(world.released("allowed")) == 10


@pytest.mark.parametrize("process", ["streaming.job", "ingest.server"])
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"ESCROW_KAFKA_SASL_PASSWORD": "a guess"}, ["kafkaSaslPassword", "kafkaSaslMechanism", f"kafkaSaslUsername '{USER}'"]),
        ({"ESCROW_KAFKA_TLS_CA_FILE": "{other}"}, ["kafkaTlsCaFile"]),
    ],
)
def test_who_is_not_let_in_says_which_settings_to_change(
    world: KafkaWorld, tmp_path: Path, process: str, changed: dict[str, str], named: list[str]
) -> None:
    other = Authority(tmp_path / "other").cert
    environment = {"ESCROW_KAFKA_SASL_PASSWORD": PASSWORD} | {name: text.format(other=other) for name, text in changed.items()}
    flags = [f"dataDir={tmp_path / 'data'}", *world.flags]
    flags = [flag for flag in flags if "kafkaTlsCaFile" not in flag or "ESCROW_KAFKA_TLS_CA_FILE" not in changed]
    command = [sys.executable, "-m", process, *(word for flag in flags for word in ("--set", flag))]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=ROOT, env={**os.environ, **environment}, check=False
    )
    assert done.returncode != 0
    for name in named:
        assert name in done.stderr
    assert "a guess" not in done.stderr
