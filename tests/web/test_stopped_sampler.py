"""A sampler that was stopped: the surface goes on, and says so."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest

from soak.clock import SystemClock
from soak.run import Plan, Run
from soak.simulate import SimulatedLoad, World
from soak.store.memory import MemoryStore
from soak.telemetry.watch import Sampler
from soak.web import Surface
from tests.web.conftest import Fetch, Got
from tests.web.scenes import protocol, run_info


@pytest.mark.slow
def test_health_tells_of_a_stopped_sampler_and_of_its_replacement(surface: Surface, fetch: Fetch) -> None:
    """The processor's real sensors in their real child; the load alone is simulated, in real time."""
    clock = SystemClock()
    sampler = Sampler(("cpu",), clock=clock)
    sampler.start()
    try:
        devices = sampler.devices()
        plan = protocol(1)
        plan = replace(plan, limits=replace(plan.limits, required=frozenset({"faults", "coverage"})))
        sampler.watch([device.gpu for device in devices], plan.poll_ms, plan.ecc_every_ms)
        world = World(clock, plan, devices, (), 7)  # type: ignore[arg-type]  # the real clock will do
        info = replace(run_info("healthy", 1), devices=devices)
        run = Run(Plan(info, plan, "boot-1"), clock, sampler, SimulatedLoad(world), MemoryStore(clock))
        assert run.wait_for_cards() == []

        def until(status: int) -> Got:
            deadline_s = time.monotonic() + 30
            while True:
                run.tick()
                surface.publish(run.snapshot())
                began_s = time.monotonic()
                got = fetch("/healthz")
                assert fetch("/metrics").status == 200
                assert time.monotonic() - began_s < 2
                if got.status == status or time.monotonic() > deadline_s:
                    return got
                time.sleep(0.2)

        assert until(200).text == "ok\n"
        assert sampler.pid is not None
        os.kill(sampler.pid, signal.SIGSTOP)
        assert until(503).text.startswith("no reading of cpu for ")
        assert 'soak_gpu_up{gpu="cpu"} 1.0' in fetch("/metrics").text
        assert until(200).text == "ok\n"  # the child was replaced
        run.finish("interrupted", "the test is over")
    finally:
        sampler.stop(2_000)
