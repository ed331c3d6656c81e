"""A read that never returns, under a real daemon: it goes on serving, says so, and ends when told to."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

MI50 = Path(__file__).parents[1] / "captures/amd__instinct-mi50-32gb__by-hand/root"
GPU = "0000:33:00.0"
SHAPES = ("--seq-len", "64:128", "--heads", "2", "--head-dim", "64", "--warmup", "0s", "--rotate-every", "2s",
          "--check-every", "3s", "--sample-every", "2s", "--duration", "5m",
          "--listen", "127.0.0.1:0")  # fmt: skip


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MI50, tmp_path / "mi50", symlinks=True))


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_driver_that_hangs(machine, recorded: Path):
    child = machine.start("run", "--sysfs-root", str(recorded), *SHAPES)
    machine.wait_for(machine.begun)
    found = re.search(r"on (http://127\.0\.0\.1:\d+/)", machine.log())
    assert found is not None
    url = found[1]
    machine.wait_for(lambda: f'soak_gpu_utilization_ratio{{gpu="{GPU}"}} 0.99' in fetched(f"{url}metrics")[1])

    busy = recorded / "sys/bus/pci/devices" / GPU / "gpu_busy_percent"
    busy.unlink()
    os.mkfifo(busy)  # nobody writes: an open for reading waits for ever

    machine.wait_for(lambda: fetched(f"{url}healthz")[0] == 503, 15)
    health = fetched(f"{url}healthz")[1]
    assert GPU in health
    code, metrics = fetched(f"{url}metrics")
    assert code == 200
    assert "soak_gpu_utilization_ratio{" not in metrics, "a value that nobody reads is not shown"
    assert f'soak_gpu_up{{gpu="{GPU}"}} 1' in metrics
    steps = float(re.search(r"soak_load_iterations_total\{[^}]*\} (\S+)", metrics)[1])
    machine.wait_for(lambda: f"{steps:g}" not in fetched(f"{url}metrics")[1], 10)  # the load goes on

    begun_s = time.monotonic()
    child.send_signal(signal.SIGTERM)
    assert child.wait(15) == 3
    assert time.monotonic() - begun_s < 5
    connection = sqlite3.connect(machine.data_dir / "soak.db")
    try:
        slots = connection.execute(
            "SELECT end_ms - start_ms - observed_ms, missing FROM sample ORDER BY slot"
        ).fetchall()
        gaps = connection.execute("SELECT gpu, detail FROM incident WHERE kind = 'sensor_gap'").fetchall()
    finally:
        connection.close()
    unobserved_ms, missing = slots[-2]
    assert unobserved_ms == 2000, "the gap is a fact in the data"
    assert "no answer in" in missing
    assert gaps == [(GPU, "no answer in 2 s")]
