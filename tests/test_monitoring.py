"""monitoring/: what starts together fits together. That its metrics exist: test_server_watched."""

import json
import re
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent.parent / "monitoring"


def read(name):
    return yaml.safe_load((FOLDER / name).read_text())


def test_everything_listens_on_this_machine_alone():
    services = read("compose.yaml")["services"]
    assert {service["network_mode"] for service in services.values()} == {"host"}
    assert not any("ports" in service for service in services.values())
    assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://127.0.0.1:9090"


def test_what_is_mounted_is_there_and_found_where_it_is_looked_for():
    compose = read("compose.yaml")
    mounts = [mount.split(":") for service in compose["services"].values() for mount in service["volumes"]]
    assert all(
        (FOLDER / source).exists() if source.startswith(".") else source in compose["volumes"] for source, *_ in mounts
    )
    inside = {target: source for source, target, *_ in mounts}
    assert read("prometheus.yml")["rule_files"] == ["alarms.yml"]
    assert inside["/etc/prometheus/alarms.yml"] == "./alarms.yml"
    (provider,) = read("grafana/provisioning/dashboards/xshare.yaml")["providers"]
    assert inside[provider["options"]["path"]] == "./grafana/dashboards"


def test_the_dashboard_asks_the_source_that_is_provided():
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    dashboard = json.loads((FOLDER / "grafana/dashboards/xshare.json").read_text())
    uids = re.findall(r'"uid": "([^"]*)"', json.dumps(dashboard["panels"] + dashboard["templating"]["list"]))
    assert set(uids) == {source["uid"]}
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            assert all(expression.count(a) == expression.count(b) for a, b in ("()", "{}", "[]")), expression
            assert all(
                '{instance="$instance"}' in expression[m.end() :]
                for m in re.finditer(r"(?:xshare|vllm):\w+", expression)
            )
