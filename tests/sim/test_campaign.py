"""Runs with drawn faults against an oracle that knows the plan and not the code that judges."""

from __future__ import annotations

from typing import Any

import pytest

from soak.core.records import Verdict
from soak.simulate import SCENARIOS, Fault, Scenario, campaign

HOUR_MS = 3_600_000


def outcome(theatre: Any, seed: int, n_gpus: int, scenario: Scenario | None = None) -> campaign.Outcome:
    config = theatre.config().with_seed(seed, "test")
    scenario = scenario or campaign.drawn(seed, n_gpus)
    return campaign.play(scenario, theatre.info(scenario, n_gpus, config=config), config.protocol())


def assert_all_agree(theatre: Any, seeds: range, n_gpus: int) -> set[Verdict]:
    outcomes = [outcome(theatre, seed, n_gpus) for seed in seeds]
    assert [f"seed {s}: {o.words}" for s, o in zip(seeds, outcomes, strict=True) if not o.agrees] == []
    return {each.expected for each in outcomes}


def test_a_small_campaign_agrees_with_the_oracle(theatre: Any) -> None:
    assert assert_all_agree(theatre, range(4, 10), 1) == set(Verdict)


@pytest.mark.slow
@pytest.mark.parametrize("n_gpus", [1, 2, 4])
def test_a_campaign_agrees_with_the_oracle(theatre: Any, n_gpus: int) -> None:
    assert assert_all_agree(theatre, range(1_000, 1_060), n_gpus) == set(Verdict)


@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - {"thermal-drift", "restart"}))
def test_the_oracle_knows_the_contract(theatre: Any, name: str) -> None:
    """Of the scenarios whose faults a campaign draws."""
    assert campaign.oracle(SCENARIOS[name], theatre.config().protocol()) is SCENARIOS[name].verdict


def test_an_outcome_that_differs_is_said(theatre: Any) -> None:
    faults = (Fault("ecc", 10 * HOUR_MS, value=1.0),)
    found = outcome(theatre, 3, 1, Scenario("x", "y", Verdict.INCONCLUSIVE, None, faults))
    assert found.agrees
    wrong = campaign.Outcome(found.scenario, Verdict.PASS, found.live, found.stored)
    assert not wrong.agrees
    assert wrong.words == "expected pass, live fail, stored fail; faults: ecc@600min"


def test_drawn_plans_are_plans() -> None:
    """The same for the same seed, within the run, on cards that exist, and of every kind."""
    kinds: set[str] = set()
    for seed in range(400):
        scenario = campaign.drawn(seed, 3)
        assert scenario == campaign.drawn(seed, 3)
        for fault in scenario.faults:
            kinds.add(fault.kind)
            assert 0 <= fault.at_ms < 48 * HOUR_MS
            assert fault.gpu in (None, 0, 1, 2)
    assert kinds == {"ecc", "utilisation", "hang", "lost", "bit-flip", "no-ecc", "clock-step", "disk-full"}


@pytest.mark.parametrize(("minutes", "verdict"), [(57, Verdict.PASS), (58, Verdict.FAIL)])
def test_two_percent_of_48_hours_are_57_minutes_and_36_seconds(
    theatre: Any, minutes: int, verdict: Verdict
) -> None:
    begin_ms = 20 * HOUR_MS
    faults = (Fault("utilisation", begin_ms, begin_ms + minutes * 60_000, 0, 40.0),)
    found = outcome(theatre, 5, 1, Scenario("x", "y", verdict, None, faults))
    assert (found.expected, found.live, found.stored) == (verdict,) * 3
