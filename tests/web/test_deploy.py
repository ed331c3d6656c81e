"""What `deploy/` promises: files in order, a dashboard whose every query finds data in a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from soak.config import OPTIONS
from soak.core.snapshot import Snapshot
from soak.exporter import FAMILIES, Exporter
from soak.web import Surface
from tests.web.scenes import with_everything

DEPLOY = Path(__file__).parents[2] / "deploy"
SETTINGS = dict(
    line.split("=", 1) for line in (DEPLOY / ".env").read_text().splitlines() if line and line[0] != "#"
)
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
SERVICES = ("soak-amd", "soak-nvidia", "soak-cpu")


def compose() -> dict[str, Any]:
    """compose.yaml with the settings of .env filled in."""
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    filled: dict[str, Any] = yaml.safe_load(
        re.sub(r"\$\{(\w+)(?::[-?][^}]*)?\}", lambda found: SETTINGS[found[1]], text)
    )
    return filled


# -- compose.yaml --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_that_is_started_again_takes_up_its_run(name: str) -> None:
    service = compose()["services"][name]
    assert service["restart"] == "unless-stopped"
    assert service["environment"]["SOAK_RUN_ID"] == SETTINGS["SOAK_RUN_ID"]
    assert service["volumes"] == ["soak-data:/data"]
    assert "soak-data" in compose()["volumes"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_setting_is_an_option_with_a_value_that_soak_takes(name: str) -> None:
    variables = {option.variable: option for option in OPTIONS.values()}
    for variable, value in compose()["services"][name]["environment"].items():
        if variable.startswith("SOAK_"):
            variables[variable].read(value)  # raises where it cannot be meant


def test_which_cards_is_a_profile_and_the_default_is_amd() -> None:
    services = compose()["services"]
    assert [services[name]["profiles"] for name in SERVICES] == [["amd"], ["nvidia"], ["cpu"]]
    assert SETTINGS["COMPOSE_PROFILES"] == "amd"
    assert "profiles" not in services["prometheus"]
    assert services["soak-amd"]["devices"] == ["/dev/kfd", "/dev/dri"]
    assert services["soak-cpu"]["environment"]["SOAK_DEVICE"] == "cpu"


def test_the_render_group_is_a_number() -> None:
    """Names of groups differ between a host and its containers."""
    (group,) = compose()["services"]["soak-amd"]["group_add"]
    assert group.isdecimal()


def test_logs_are_limited_and_images_are_pinned() -> None:
    for name, service in compose()["services"].items():
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}, name
        assert not service["image"].endswith(":latest") or name in SERVICES


def test_nobody_outside_this_machine_is_served_unasked() -> None:
    for service in compose()["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_what_is_mounted_is_there() -> None:
    for service in compose()["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose()["volumes"]


def test_prometheus_scrapes_what_compose_starts() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert targets["soak"] == ["soak:9868"]
    for name in SERVICES:
        service = compose()["services"][name]
        assert service["networks"]["default"]["aliases"] == ["soak"]
        assert service["environment"]["SOAK_LISTEN"].endswith(":9868")


def test_grafana_knows_the_prometheus_of_compose() -> None:
    sources = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text(encoding="utf-8")
    )["datasources"]
    assert [urllib.parse.urlsplit(source["url"]).hostname for source in sources] == ["prometheus"]
    providers = yaml.safe_load(
        (DEPLOY / "grafana/provisioning/dashboards/soak.yaml").read_text(encoding="utf-8")
    )["providers"]
    mounted = compose()["services"]["grafana"]["volumes"]
    assert f"./grafana/dashboards:{providers[0]['options']['path']}:ro" in mounted
    home = compose()["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DEPLOY / "grafana/dashboards" / Path(home).name).exists()


# -- dashboards ----------------------------------------------------------------------------------------------


def panels(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def queries(path: Path) -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in panels(path) for target in panel["targets"]]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_asks_for_metrics_that_there_are(path: Path) -> None:
    known = {family.name for family in FAMILIES} | {"soak_build_info"}
    labels = {label for family in FAMILIES for label in (*family.labels, family.name)}
    for title, query in queries(path):
        bare = re.sub(r'"[^"]*"', '""', query)
        asked = set(re.findall(r"\bsoak_\w+", re.sub(r"\{[^}]*\}", "", bare)))
        assert asked, title
        assert asked <= known, title
        named = set(re.findall(r"(\w+)=~?\"", bare)) | {
            label.strip() for by in re.findall(r"\b(?:by|on) \(([^)]*)\)", bare) for label in by.split(",")
        }
        assert named <= labels | {"profile"}, title


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_is_in_order(path: Path) -> None:
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    everything = dashboard["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = {name for _, query in queries(path) for name in re.findall(r"\$(\w+)", query)}
    assert used - {"__rate_interval", "1"} <= variables
    for panel in panels(path):
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_the_first_dashboard_shows_what_was_promised() -> None:
    asked = " ".join(query for _, query in queries(DEPLOY / "grafana/dashboards/soak-run.json"))
    for metric in (
        "soak_run_verdict", "soak_verdict", "soak_criterion", "soak_gpu_utilization_ratio",
        "soak_gpu_temperature_celsius", "soak_gpu_ecc_errors_total", "soak_gpu_memory_free_bytes",
        "soak_gpu_power_watts", "soak_load_seq_len", "soak_load_flops_total",
    ):  # fmt: skip
        assert metric in asked


# -- a real Prometheus ---------------------------------------------------------------------------------------


def required(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed (Debian: prometheus)")
    return found


def test_promtool_takes_the_configuration() -> None:
    path = str(DEPLOY / "prometheus" / "prometheus.yml")
    command = [required("promtool"), "check", "config", path]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stdout + checked.stderr


def as_of_now(snapshot: Snapshot, n: int) -> Snapshot:
    """The snapshot n seconds later, by the clocks of this machine."""
    now_ms = time.time_ns() // 1_000_000
    cards = tuple(
        replace(
            card,
            poll_utc_ms=now_ms - 400,
            progress_utc_ms=now_ms - 100,
            n_steps=card.n_steps + 3 * n,
            flops=card.flops + 12 * n * 10**12,
        )
        for card in snapshot.cards
    )
    return replace(snapshot, utc_ms=now_ms, elapsed_ms=snapshot.elapsed_ms + 1000 * n, cards=cards)


class Prometheus:
    """A server on loopback that was started with the configuration of `deploy/`."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Has scraped a run of two cards with every metric, as compose.yaml's would, only more often."""
    program, folder = required("prometheus"), tmp_path_factory.mktemp("prometheus")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    surface = Surface(("127.0.0.1", 0), Exporter().render)
    surface.start()
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    for was, becomes in (
        ("soak:9868", f"127.0.0.1:{surface.port}"), ("localhost:9090", f"127.0.0.1:{port}"),
        ("scrape_interval: 15s", "scrape_interval: 1s"), ("scrape_timeout: 10s", "scrape_timeout: 1s"),
    ):  # fmt: skip
        assert was in text
        text = text.replace(was, becomes)
    (folder / "prometheus.yml").write_text(text, encoding="utf-8")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        asked, snapshot = Prometheus(port), with_everything()
        deadline_s = time.monotonic() + 60
        for n in range(10_000):
            surface.publish(as_of_now(snapshot, n))
            if asked.is_ready() and asked.query("count_over_time(soak_build_info[1m]) >= 4"):
                break
            assert time.monotonic() < deadline_s, (folder / "log").read_text()
            time.sleep(0.5)
        yield asked
    finally:
        server.terminate()
        server.wait(20)
        surface.stop(2_000)


def test_prometheus_takes_the_page_whole(prometheus: Prometheus) -> None:
    targets = {t["labels"]["job"]: t for t in prometheus.get("targets")["activeTargets"]}
    assert targets["soak"]["health"] == "up", targets["soak"]["lastError"]
    assert targets["soak"]["lastError"] == ""
    scraped = {found["metric"]["__name__"] for found in prometheus.query('{__name__=~"soak_.*"}')}
    assert scraped == {family.name for family in FAMILIES} | {"soak_build_info"}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_every_query_of_a_dashboard_is_answered_with_data(prometheus: Prometheus, path: Path) -> None:
    values = {"run_id": "sim-hang", "gpu": ".*", "__rate_interval": "10s"}
    for title, query in queries(path):
        filled = re.sub(r"\$([a-z_]\w*)", lambda found: values[found[1]], query)
        found = prometheus.query(filled)
        assert found, f"{title}: {filled}"
        assert all(series["value"][1] != "NaN" for series in found), f"{title}: {filled}"


def test_the_verdict_of_the_dashboard_is_the_run_s(prometheus: Prometheus) -> None:
    (query,) = (q for title, q in queries(DEPLOY / "grafana/dashboards/soak-run.json") if title == "Verdict")
    (found,) = prometheus.query(query.replace("$run_id", "sim-hang"))
    assert found["value"][1] == "2"  # FAIL, by the panel's own mapping


def test_every_question_of_the_documentation_is_understood(prometheus: Prometheus) -> None:
    text = (DEPLOY.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
    questions = re.findall(r"^    (\S.*?) +#", text, re.MULTILINE)
    assert len(questions) == 6
    for question in questions:
        prometheus.query(question)
