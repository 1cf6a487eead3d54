"""A real Prometheus scrapes the whole service under load: every query of every panel and every rule gives data, and docs/metrics.md
names what the two pages tell, no more and no less."""

from __future__ import annotations

import json
import threading
import urllib.request
from contextlib import suppress

import grpc
import pytest
import yaml

from scripts.dashboards import PLACE
from tests.support.edge_client import EdgeClient, RemoteError
from tests.support.metrics_page import documented, exposed
from tests.support.prometheus import CONF, scraping

TOPIC, GROUP = "watched", "watched"
#: Not reached by anybody else: refused after the first.
LIMITED = "watched-limited"


def load_once(client):
    """A little of everything that is measured."""
    committed, rolled_back, doubtful = client.prepare([{"group": GROUP, "topic": TOPIC, "text": "x"}] * 3)
    client.end(GROUP, committed, "commit")
    client.end(GROUP, committed, "commit")
    client.end(GROUP, committed, "rollback")
    client.end(GROUP, rolled_back, "rollback")
    client.end("another", doubtful, "commit")
    client.call("POST", "/v1/messages", {"messages": [{"group": GROUP, "topic": TOPIC, "text": "plain"}]})
    with suppress(RemoteError):
        client.prepare([{"group": LIMITED, "topic": TOPIC, "text": "x"}])
    for check in client.poll_checks(GROUP, "deaf", wait_s=0):  # half of them are answered, the others are discarded in the end
        if check["attempt"] == 1 and sum(check["id"].encode()) % 2:
            client.end(GROUP, check["id"], "commit", from_check=True)
    messages = client.consume(TOPIC, group="readers", wait_s=0)
    client.ack(TOPIC, [message["receipt"] for message in messages[1:]], group="readers")
    with suppress(RemoteError):
        client.call("GET", "/no-such-thing")


def heartbeat(port):
    """A call of a RocketMQ client."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        channel.unary_unary("/apache.rocketmq.v2.MessagingService/Heartbeat")(b"\x10\x01", metadata=(("x-mq-client-id", "me"),))


@pytest.fixture(scope="module")
def loaded(run):
    """Load in the background, as long as the tests here run."""
    (run.data / "groups.toml").write_text(f'[groups."{LIMITED}"]\npending_max = 1\n')
    stop, trouble = threading.Event(), []

    def work():
        try:
            heartbeat(run.state["edge"]["grpc_port"])
            with EdgeClient(run.port) as client:
                while not stop.wait(0.05):
                    load_once(client)
        except Exception as error:  # shown by the test that waits
            trouble.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    yield trouble
    stop.set()
    thread.join()
    assert trouble == []


@pytest.fixture(scope="module")
def prometheus(run, loaded, ports, tmp_path_factory):
    with scraping(tmp_path_factory.mktemp("prometheus") / "its", ports) as made:
        yield made


def page(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return answer.read().decode()


def queries():
    for file in sorted(PLACE.glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield pytest.param(target["expr"], id=f"{file.stem}: {panel['title']} {target['refId']}")


def filled(expr):
    """As Grafana does it when everything is chosen."""
    for name, value in (("$__rate_interval", "10s"), ("$instance", ".*"), ("$group", ".*"), ("$topic", ".*"), ("$readers", ".*")):
        expr = expr.replace(name, value)
    return expr


@pytest.mark.parametrize("expr", list(queries()))
def test_every_panel_has_data(expr, prometheus):
    prometheus.until_values(filled(expr))


def test_every_rule_works(prometheus):
    for group in yaml.safe_load((CONF / "recording.yml").read_text())["groups"]:
        for rule in group["rules"]:
            prometheus.until_values(rule["record"])
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule.get("lastError", "") for rule in rules if rule["health"] != "ok"} == {}
    assert len([rule for rule in rules if rule["type"] == "alerting"]) == len(
        [rule for group in yaml.safe_load((CONF / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    )


def test_an_alert_reaches_the_page_of_alerts(prometheus):
    """The load contradicts itself all the time; what the summary says is filled in."""
    prometheus.until_values('ALERTS{alertname="EscrowConflicts", alertstate="firing"}')
    [alert] = [alert for alert in prometheus.get("alerts")["alerts"] if alert["labels"]["alertname"] == "EscrowConflicts"]
    assert alert["annotations"]["summary"] == "producers of escrow contradict themselves"


@pytest.mark.parametrize(("whence", "port"), [("edge", "7480"), ("job", "7482")])
def test_the_page_names_what_is_told(whence, port, run, prometheus, ports):
    run.until(lambda: exposed(page(ports[port])).keys() >= documented(whence).keys())
    told = exposed(page(ports[port]))
    assert told == documented(whence)
