"""`soak run` on this machine's CPU, for real: to the end, stopped, killed, taken up again, refused."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
from contextlib import closing
from importlib.resources import files
from typing import Any

import jsonschema


def rows(machine: Any, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{machine.data_dir}/soak.db?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def test_a_run_ends_with_a_certificate_that_every_command_agrees_with(machine: Any) -> None:
    ran = machine.run("run", *machine.small, "--duration", "8s", "--run-id", "first", "--label", "rack=7")
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert "\n  PASS\n" in ran.stdout
    report = machine.run("report", "--run-id", "fir")
    assert (report.returncode, "\n  PASS\n" in report.stdout) == (0, True)
    document = json.loads(machine.run("report", "--run-id", "latest", "--format", "json").stdout)
    schema = json.loads(files("soak.report").joinpath("schema/report-v1.json").read_text())
    jsonschema.validate(document, schema)
    (card,) = document["cards"]
    assert card["kernel"] == document["run"]["kernel"]
    assert card["load"]["lanes"] == len(os.sched_getaffinity(0))
    assert "same bits every time" in card["kernel_reason"]
    assert "first" in machine.run("runs").stdout
    (integrity,) = rows(machine, "select sum(n), sum(mismatches), count(*) from integrity_check")
    assert integrity[0] >= 10
    assert integrity[1:] == (0, 4)
    again = machine.run("run", *machine.small, "--duration", "8s", "--run-id", "first", timeout_s=20)
    assert again.returncode == 0
    assert "PASS" in again.stdout
    assert rows(machine, "select count(*) from attempt") == [(1,)]


def test_sigterm_ends_it_within_five_seconds_and_the_next_start_begins_the_clock_again(machine: Any) -> None:
    child = machine.start("run", *machine.small, "--duration", "10s")
    machine.wait_for(machine.begun)
    time.sleep(4)
    children = machine.descendants(child.pid)
    began = time.monotonic()
    child.send_signal(signal.SIGTERM)
    assert child.wait(5) == 3, machine.log()
    assert time.monotonic() - began < 5
    assert not [pid for pid in children if machine.is_running(pid)]
    assert rows(machine, "select count(*) from sample where closed = 1")[0][0] >= 1
    again = machine.run("run", *machine.small, "--duration", "10s")
    assert again.returncode == 0, again.stderr
    assert rows(machine, "select count(distinct run_id), max(attempt) from attempt") == [(1, 2)]


def test_continue_uses_the_remaining_time_and_stays_inconclusive(machine: Any) -> None:
    child = machine.start("run", *machine.small, "--duration", "9s", "--run-id", "x")
    machine.wait_for(machine.begun)
    time.sleep(4.5)
    child.send_signal(signal.SIGINT)
    assert child.wait(5) == 3
    began = time.monotonic()
    again = machine.run(
        "run", *machine.small, "--duration", "9s", "--run-id", "x", "--on-interrupt", "continue"
    )
    assert again.returncode == 3, again.stderr
    assert "2 stretches" in again.stdout
    assert "FAIL" not in again.stdout
    assert time.monotonic() - began < 60
    elapsed_ms, attempts = rows(machine, "select elapsed_ms, count(*) from attempt")[0]
    assert (elapsed_ms, attempts) == (9_000, 1)


def test_kill_9_leaves_no_orphan_and_loses_little(machine: Any) -> None:
    child = machine.start("run", *machine.small, "--duration", "60s", "--sample-every", "20s")
    machine.wait_for(machine.begun)
    begun = time.monotonic()
    refused = machine.run("run", *machine.small, "--duration", "60s", "--sample-every", "20s")
    assert refused.returncode == 4
    assert "held by" in refused.stderr
    elsewhere = machine.run(
        "run", *machine.small, "--duration", "60s", "--data-dir", str(machine.data_dir) + "-2"
    )
    assert elsewhere.returncode == 4
    time.sleep(max(17 - (time.monotonic() - begun), 0))
    children = machine.descendants(child.pid)
    assert len(children) >= 2
    alive_ms = int((time.monotonic() - begun) * 1000)
    child.kill()
    child.wait()
    time.sleep(5)
    assert not [pid for pid in children if machine.is_running(pid)]
    assert rows(machine, "pragma integrity_check") == [("ok",)]
    (observed_ms,) = rows(machine, "select sum(observed_ms) from sample")[0]
    assert observed_ms >= alive_ms - 15_000
    killed = machine.run("report", "--run-id", "latest")
    assert killed.returncode == 3
    again = machine.start(
        "run", *machine.small, "--duration", "60s", "--sample-every", "20s", "--on-interrupt", "stop"
    )
    machine.wait_for(machine.begun)
    again.send_signal(signal.SIGTERM)
    assert again.wait(5) == 3
    ended = rows(machine, "select run_id, outcome from attempt order by started_utc_ms")
    assert [end for _, end in ended] == ["closed", "interrupted"]
    assert len({run_id for run_id, _ in ended}) == 2


def test_a_failed_run_whose_daemon_was_killed_gets_its_end(machine: Any) -> None:
    same = ("run", *machine.small, "--duration", "60s", "--run-id", "wrong", "--inject-bit-flip", "0:2")
    child = machine.start(*same)
    machine.wait_for(lambda: "FAIL" in machine.log())
    beside = machine.run(*same)
    assert (beside.returncode, rows(machine, "select outcome from attempt")) == (1, [("running",)])
    child.kill()
    child.wait()
    again = machine.run(*same)
    assert again.returncode == 1
    assert "FAIL" in again.stdout
    assert rows(machine, "select outcome from attempt") == [("interrupted",)]
    assert "running" not in machine.run("runs").stdout


def test_whoever_watches_ends_with_the_run_though_nothing_lingers(machine: Any) -> None:
    child = machine.start("run", *machine.small, "--duration", "8s")
    machine.wait_for(machine.begun)
    url = re.search(r"http://127\.0\.0\.1:\d+", machine.log())
    assert url is not None
    watched = machine.run("watch", url.group(), timeout_s=60)
    assert (watched.returncode, child.wait(20)) == (0, 0), watched.stderr
    assert "completed: PASS" in watched.stdout


def test_another_protocol_under_the_same_id_is_refused(machine: Any) -> None:
    child = machine.start("run", *machine.small, "--duration", "30s", "--run-id", "same")
    machine.wait_for(machine.begun)
    child.send_signal(signal.SIGTERM)
    assert child.wait(5) == 3
    other = machine.run("run", *machine.small, "--duration", "31s", "--run-id", "same")
    assert other.returncode == 2
    assert "duration 30s, now 31s" in other.stderr
