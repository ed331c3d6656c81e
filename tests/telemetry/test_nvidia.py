"""NVML by a stand-in at the library's boundary: functions are ours, constants and errors pynvml's own."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from soak.core.ports import Happening
from soak.core.records import Poll, Quantity, Reading, ReadingStatus
from soak.telemetry import nvidia
from soak.telemetry.nvidia import NvidiaBackend
from soak.telemetry.sensors import CardGone, Unavailable

A, B = "0000:01:00.0", "0000:41:00.0"
UTILISATION = Quantity.UTILISATION_PCT


class Card:
    """What one card answers; a value that is an int constant of NVML_ERROR_* wrapped in Raises is raised."""

    def __init__(self, address: str, **answers: Any) -> None:
        self.address = address
        self.lost = False
        self.samples: list[tuple[int, int]] = []
        self.ecc = {("volatile", "corrected"): 0, ("volatile", "uncorrected"): 0}
        self.ecc |= {("aggregate", "corrected"): 0, ("aggregate", "uncorrected"): 0}
        self.answers: dict[str, Any] = {
            "EccMode": [1, 1],
            "UtilizationRates": SimpleNamespace(gpu=97, memory=41),
            "TemperatureV": 63,
            "TemperatureThreshold": 89,
            "MemoryInfo": SimpleNamespace(total=150754820096, reserved=643825664, used=0, free=150110994432),
            "PowerUsage": 691_250,
            "EnforcedPowerLimit": 700_000,
            "CurrentClocksEventReasons": 0,
            "CurrPcieLinkWidth": 16,
            "CurrPcieLinkGeneration": 5,
            "PcieReplayCounter": 0,
            "TotalEnergyConsumption": 2_500_000_000,
            "MigMode": [0, 0],
            "Name": "NVIDIA H200",
            "UUID": f"GPU-{address}",
            "VbiosVersion": "96.00.A5.00.03",
            "CudaComputeCapability": (9, 0),
            "RemappedRows": (0, 0, 0, 0),
            "memory_temperature": 71,
            "slowed_for_heat_ns": NOT_SUPPORTED,
            "slowed_for_power_ns": NOT_SUPPORTED,
        } | answers


class Raises:
    def __init__(self, code: int) -> None:
        self.code = code


NOT_SUPPORTED, UNKNOWN, LOST = (
    Raises(code)
    for code in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST)
)


class FakeNvml:
    """Stands in for the module pynvml. A card's handle is the card."""

    def __init__(self, *cards: Card, init: Raises | None = None) -> None:
        self.cards = list(cards)
        self.init = init
        self.n_sessions = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlGpm"):
            raise AttributeError(name)  # a library that has none
        if name.startswith("nvmlDeviceGet"):
            return lambda card, *_, **__: self.answer(card, name.removeprefix("nvmlDeviceGet"))
        return getattr(pynvml, name)

    def answer(self, card: Card, name: str) -> Any:
        if card.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        answer = card.answers.get(name, NOT_SUPPORTED)
        if isinstance(answer, Raises):
            raise pynvml.NVMLError(answer.code)
        return answer

    def nvmlInit(self) -> None:
        self.n_sessions += 1
        if self.init is not None:
            raise pynvml.NVMLError(self.init.code)

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "590.48.01"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        return self.cards[index]

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> Card:
        for card in self.cards:
            if card.address == bus_id:
                return card
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetPciInfo(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(busId=f"0000{card.address}".upper().encode())

    def nvmlDeviceGetIndex(self, card: Card) -> int:
        return self.cards.index(card)

    def nvmlDeviceGetClockInfo(self, card: Card, domain: int) -> int:
        self.answer(card, "Name")
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[domain]

    def nvmlDeviceGetSamples(self, card: Card, kind: int, seen_us: int) -> tuple[int, list[SimpleNamespace]]:
        assert kind == pynvml.NVML_GPU_UTILIZATION_SAMPLES
        self.answer(card, "Name")
        new = [
            SimpleNamespace(timeStamp=at, sampleValue=SimpleNamespace(uiVal=value))
            for at, value in card.samples
            if at > seen_us
        ]
        if not new:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 1, new

    def nvmlDeviceGetTotalEccErrors(self, card: Card, kind: int, view: int) -> int:
        self.answer(card, "Name")
        answer = card.ecc[
            {pynvml.NVML_VOLATILE_ECC: "volatile", pynvml.NVML_AGGREGATE_ECC: "aggregate"}[view],
            {
                pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED: "corrected",
                pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED: "uncorrected",
            }[kind],
        ]
        if isinstance(answer, Raises):
            raise pynvml.NVMLError(answer.code)
        return answer

    def nvmlDeviceGetFieldValues(self, card: Card, ids: list[int]) -> list[SimpleNamespace]:
        told = {
            pynvml.NVML_FI_DEV_MEMORY_TEMP: card.answers["memory_temperature"],
            pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT: 2**32 - 2,
            pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT: 2**32 - 8,
            pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL: card.answers["slowed_for_heat_ns"],
            pynvml.NVML_FI_DEV_PERF_POLICY_POWER: card.answers["slowed_for_power_ns"],
        }
        self.answer(card, "Name")
        answers = [told.get(number, NOT_SUPPORTED) for number in ids]
        return [
            SimpleNamespace(nvmlReturn=answer.code, value=SimpleNamespace(uiVal=0))
            if isinstance(answer, Raises)
            else SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=answer, ullVal=answer))
            for answer in answers
        ]


def backend(*cards: Card, **kwargs: Any) -> NvidiaBackend:
    return NvidiaBackend(Path("/"), FakeNvml(*cards, **kwargs))


def test_a_card_as_it_should_be():
    subject = backend(Card(A))
    assert list(subject.find()) == [A]
    told = subject.open(A).describe()
    assert (told.gpu, told.vendor, told.model, told.arch) == (A, "nvidia", "NVIDIA H200", "sm_90")
    assert (told.uuid, told.driver, told.vbios) == (f"GPU-{A}", "590.48.01", "96.00.A5.00.03")
    assert told.temperature_sensor is Quantity.TEMPERATURE_CORE_C
    assert (told.slowdown_c, told.power_cap_w, told.memory_total_bytes) == (89.0, 700.0, 150754820096)
    assert told.ecc == Reading.ok(1.0)
    readings = subject.open(A).read()
    assert {quantity: reading.value for quantity, reading in readings.items()} == {
        UTILISATION: 97.0,
        Quantity.MEMORY_BUSY_PCT: 41.0,
        Quantity.TEMPERATURE_CORE_C: 63.0,
        Quantity.TEMPERATURE_MEMORY_C: 71.0,
        Quantity.POWER_W: 691.25,
        Quantity.CLOCK_CORE_HZ: 1980e6,
        Quantity.CLOCK_MEMORY_HZ: 3201e6,
        Quantity.MEMORY_TOTAL_BYTES: 150754820096.0,
        Quantity.MEMORY_FREE_BYTES: 150110994432.0,
        Quantity.THERMAL_THROTTLE: 0.0,
        Quantity.POWER_THROTTLE: 0.0,
        Quantity.PCIE_WIDTH: 16.0,
        Quantity.PCIE_SPEED_GTS: 32.0,
        Quantity.PCIE_REPLAYS: 0.0,
        Quantity.ENERGY_J: 2.5e6,
        Quantity.SM_ACTIVE_PCT: None,  # see test_gpm.py
        Quantity.TENSOR_ACTIVE_PCT: None,
        Quantity.DRAM_ACTIVE_PCT: None,
    }


def test_energy_is_dear_and_asked_for_every_ten_seconds(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(nvidia.time, "monotonic", lambda: now_s[0])
    card = Card(A)
    sensor = NvidiaBackend(Path("/"), FakeNvml(card)).open(A)

    def joules() -> float | None:
        return sensor.read()[Quantity.ENERGY_J].value

    assert joules() == 2.5e6
    card.answers["TotalEnergyConsumption"] = 2_500_700_000
    now_s[0] += nvidia.ENERGY_EVERY_S - 0.1
    assert joules() == 2.5e6
    now_s[0] += 0.1
    assert joules() == 2_500_700.0
    card.answers["TotalEnergyConsumption"] = Raises(pynvml.NVML_ERROR_UNKNOWN)
    now_s[0] += nvidia.ENERGY_EVERY_S
    assert joules() is None
    card.answers["TotalEnergyConsumption"] = 2_501_400_000
    assert joules() == 2_501_400.0, "what could not be read is asked for again at once"


def test_one_session_is_held_open():
    nvml = FakeNvml(Card(A), Card(B))
    subject = NvidiaBackend(Path("/"), nvml)
    for gpu in subject.find():
        subject.open(gpu).read()
    assert nvml.n_sessions == 1


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "libnvidia-ml.so.1 is not installed"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "driver is not loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "differ in version"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "does not start"),
    ],
)
def test_no_session_is_said_in_words_and_tried_again(code, sentence):
    nvml = FakeNvml(Card(A), init=Raises(code))
    subject = NvidiaBackend(Path("/"), nvml)
    with pytest.raises(Unavailable, match=sentence):
        subject.find()
    nvml.init = None
    assert list(subject.find()) == [A]


def test_this_machine_answers_or_says_why_not():
    backend = NvidiaBackend(Path("/"))
    if any(Path("/dev").glob("nvidia[0-9]*")):
        assert backend.find()
    else:
        with pytest.raises(Unavailable, match=r"NVIDIA|NVML"):
            backend.find()


# A01


def test_a_lost_card_is_lost_and_no_other_answers_in_its_place():
    a, b = Card(A), Card(B, TemperatureV=44)
    nvml = FakeNvml(a, b)
    subject = NvidiaBackend(Path("/"), nvml)
    assert list(subject.find()) == [A, B]
    of_a, of_b = subject.open(A), subject.open(B)
    a.lost = True
    with pytest.raises(CardGone):
        of_a.read()
    with pytest.raises(CardGone):
        of_a.read_ecc()
    nvml.cards = [b]  # now index 0 is B
    with pytest.raises(CardGone):
        of_a.read()
    with pytest.raises(CardGone):
        subject.open(A)
    assert of_b.read()[Quantity.TEMPERATURE_CORE_C] == Reading.ok(44.0)
    assert list(subject.find()) == [B]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
@pytest.mark.parametrize("call", ["UtilizationRates", "TemperatureV", "PowerUsage", "MemoryInfo"])
def test_lost_is_heard_from_any_call(call, code):
    card = Card(A)
    of_a = backend(card).open(A)
    card.answers[call] = Raises(code)
    with pytest.raises(CardGone):
        of_a.read()


def test_a_card_that_is_lost_at_the_start_is_not_counted():
    nvml = FakeNvml(Card(A), Card(B))
    nvml.cards[0].lost = True
    nvml.nvmlDeviceGetPciInfo = lambda card: (
        nvml.answer(card, "Name") and FakeNvml.nvmlDeviceGetPciInfo(nvml, card)
    )  # type: ignore[method-assign]  # one card is lost
    assert list(NvidiaBackend(Path("/"), nvml).find()) == [B]


def test_a_card_that_is_lost_in_the_middle_of_a_run(start, until, tmp_path):
    """A01 from end to end: A is told lost once, its values stop, and what B says is never A's."""
    told = (Path(__file__).parents[1] / "captures/nvidia__l40s__595.80/root/nvml.json").read_text()
    answers = json.loads(told)
    second = json.loads(told.replace("card 0", "card 1").replace("0000:01:00.0", B))
    second["nvmlDeviceGetTemperatureV(card 1, 0)"] = [44]
    lost = {"error": pynvml.NVML_ERROR_GPU_IS_LOST}
    answers |= {key: value for key, value in second.items() if "card 1" in key or B in key}
    answers |= {
        "nvmlDeviceGetCount()": [2, 1],
        "nvmlDeviceGetHandleByIndex(1)": [{"handle": "card 1"}],
        "nvmlDeviceGetPciInfo(card 1)": [{"busId": f"0000{B}"}],
        "nvmlDeviceGetTemperatureV(card 0, 0)": [64, 64, 64, 64, lost],
        "nvmlDeviceGetHandleByPciBusId(0000:01:00.0)": [{"handle": "card 0"}] * 2
        + [{"error": pynvml.NVML_ERROR_NOT_FOUND}],
    }
    (tmp_path / "nvml.json").write_text(json.dumps(answers))
    sampler = start(("nvidia",), tmp_path)
    assert [device.gpu for device in sampler.devices()] == [A, B]
    sampler.watch([A, B], 100, 1000)
    news = until(sampler, lambda n: len(n) >= 24)
    happenings = [item for item in news if isinstance(item, Happening)]
    assert [(item.kind, item.gpu) for item in happenings] == [("device_lost", A)]
    temperatures = {A: [], B: []}
    for poll in news:
        if isinstance(poll, Poll):
            reading = poll.readings.get(Quantity.TEMPERATURE_CORE_C)
            temperatures[poll.gpu].append(reading.value if reading else None)
    assert set(temperatures[B]) == {44.0}
    assert set(temperatures[A]) == {64.0, None}
    assert temperatures[A] == sorted(temperatures[A], key=lambda value: value is None)


# A02, A03


@pytest.mark.parametrize("raw", [1980, 808334905, 2**64 - 1, -1])
def test_an_impossible_utilisation_is_unreadable_from_either_source(raw):
    card = Card(A, UtilizationRates=SimpleNamespace(gpu=raw, memory=raw))
    of_a = backend(card).open(A)
    reading = of_a.read()[UTILISATION]
    assert reading.status is ReadingStatus.UNREADABLE
    assert f"{raw:g}" in reading.reason
    card.samples = [(1, 97), (2, raw), (3, 97)]
    assert of_a.read()[UTILISATION].status is ReadingStatus.UNREADABLE


def test_cards_are_addresses_whatever_their_order():
    slow, fast = Card(A, Name="slow", TemperatureV=40), Card(B, Name="fast", TemperatureV=70)
    for order in ((slow, fast), (fast, slow)):
        subject = backend(*order)
        assert {gpu: subject.open(gpu).describe().model for gpu in subject.find()} == {A: "slow", B: "fast"}
        assert subject.open(A).read()[Quantity.TEMPERATURE_CORE_C] == Reading.ok(40.0)


# What a poll's utilisation is


def test_utilisation_is_the_mean_of_the_samples_since_the_last_poll():
    card = Card(A)
    card.samples = [(100, 0), (200, 0)]  # before anybody watched
    of_a = backend(card).open(A)
    assert of_a.read()[UTILISATION] == Reading.ok(97.0)  # no sample since: the last figure
    card.samples += [(300, 100), (400, 90), (500, 98)]
    assert of_a.read()[UTILISATION] == Reading.ok(96.0)
    card.samples += [(600, 10)]
    assert of_a.read()[UTILISATION] == Reading.ok(10.0)


# What is not told


def test_a_consumer_card():
    card = Card(A, EccMode=NOT_SUPPORTED, memory_temperature=NOT_SUPPORTED, RemappedRows=NOT_SUPPORTED)
    card.ecc = dict.fromkeys(card.ecc, NOT_SUPPORTED)
    of_a = backend(card).open(A)
    told = of_a.describe()
    assert told.ecc == Reading.unsupported("this card has no ECC")
    assert told.ecc_baseline == {}
    assert of_a.read_ecc() is None
    assert of_a.read()[Quantity.TEMPERATURE_MEMORY_C].status is ReadingStatus.UNSUPPORTED


def test_ecc_that_is_off_is_unsupported_with_the_remedy():
    told = backend(Card(A, EccMode=[0, 0])).open(A).describe()
    assert told.ecc.status is ReadingStatus.UNSUPPORTED
    assert "nvidia-smi -e 1" in told.ecc.reason
    told = backend(Card(A, EccMode=[0, 1])).open(A).describe()
    assert "after the next reboot" in told.ecc.reason


def test_counters_that_stop_being_told_are_missed():
    """A04's second form: supported for a while, then not; a fault of telemetry, no card without ECC."""
    card = Card(A)
    of_a = backend(card).open(A)
    assert of_a.read_ecc()["volatile/all/corrected"] == Reading.ok(0.0)
    card.ecc["volatile", "corrected"] = NOT_SUPPORTED
    counters = of_a.read_ecc()
    assert counters["volatile/all/corrected"].status is ReadingStatus.UNREADABLE
    assert counters["volatile/all/uncorrected"] == Reading.ok(0.0)


def test_counters_that_were_never_told_are_not_expected():
    card = Card(A)
    card.ecc["aggregate", "corrected"] = card.ecc["aggregate", "uncorrected"] = NOT_SUPPORTED
    of_a = backend(card).open(A)
    assert set(of_a.read_ecc()) == {"volatile/all/corrected", "volatile/all/uncorrected"}
    assert of_a.describe().ecc == Reading.ok(1.0)


def test_history_is_a_baseline_and_a_note():
    """A20: lifetime errors are told and are no errors of this run."""
    card = Card(A)
    card.ecc = {
        ("aggregate", "corrected"): 57,
        ("aggregate", "uncorrected"): 2,
        ("volatile", "corrected"): 4,
        ("volatile", "uncorrected"): 0,
    }
    told = backend(card).open(A).describe()
    assert {key: reading.value for key, reading in told.ecc_baseline.items()} == {
        "aggregate/all/corrected": 57.0,
        "aggregate/all/uncorrected": 2.0,
        "volatile/all/corrected": 4.0,
        "volatile/all/uncorrected": 0.0,
    }
    assert "aggregate/all/corrected was 57 before the run" in told.notes


def test_an_unreadable_counter_is_an_unreadable_baseline():
    card = Card(A)
    card.ecc["volatile", "uncorrected"] = UNKNOWN
    told = backend(card).open(A).describe()
    assert told.ecc.status is ReadingStatus.UNREADABLE


def test_unknown_errors_are_unreadable_and_the_rest_is_read():
    card = Card(A)
    of_a = backend(card).open(A)
    card.answers["PowerUsage"] = UNKNOWN
    readings = of_a.read()
    assert readings[Quantity.POWER_W].status is ReadingStatus.UNREADABLE
    assert "NVML" in readings[Quantity.POWER_W].reason
    assert readings[Quantity.TEMPERATURE_CORE_C] == Reading.ok(63.0)


def test_mig_is_refused_with_a_sentence():
    told = backend(Card(A, MigMode=[1, 1])).open(A).describe()
    assert told.supported[UTILISATION].status is ReadingStatus.UNSUPPORTED
    assert any("MIG is on" in note and "nvidia-smi -mig 0" in note for note in told.notes)


def test_remapped_rows_are_told():
    told = backend(Card(A, RemappedRows=(1, 2, 1, 0))).open(A).describe()
    assert "rows remapped: 1 for corrected, 2 for uncorrected errors, more pending a reset" in told.notes


@pytest.mark.parametrize(
    ("bits", "thermal", "power"),
    [
        (0x001, 0.0, 0.0),  # idle
        (0x004, 0.0, 1.0),  # software power cap
        (0x008, 1.0, 0.0),  # hardware slow-down, the cause not told
        (0x020, 1.0, 0.0),
        (0x048, 1.0, 0.0),
        (0x088, 0.0, 1.0),  # power brake
        (0x024, 1.0, 1.0),
        (0x1FF, 1.0, 1.0),
    ],
)
def test_event_reasons(bits, thermal, power):
    readings = backend(Card(A, CurrentClocksEventReasons=bits)).open(A).read()
    assert readings[Quantity.THERMAL_THROTTLE] == Reading.ok(thermal)
    assert readings[Quantity.POWER_THROTTLE] == Reading.ok(power)


def test_a_slow_down_between_two_polls_is_seen_in_its_counter():
    """The reasons are those of the instant; the counters of nanoseconds miss nothing."""
    card = Card(A, slowed_for_heat_ns=7_000_000, slowed_for_power_ns=2**40)
    of_a = backend(card).open(A)
    flags = []
    for heat_ns, power_ns in ((0, 0), (0, 1), (250_000_000, 0), (0, 0)):
        card.answers["slowed_for_heat_ns"] += heat_ns
        card.answers["slowed_for_power_ns"] += power_ns
        readings = of_a.read()
        flags.append((readings[Quantity.THERMAL_THROTTLE].value, readings[Quantity.POWER_THROTTLE].value))
    assert flags == [(0, 0), (0, 1), (1, 0), (0, 0)]


def test_a_counter_of_slow_down_that_goes_back_is_none():
    card = Card(A, slowed_for_heat_ns=7_000_000)
    of_a = backend(card).open(A)
    of_a.read()
    card.answers["slowed_for_heat_ns"] = 0  # the driver was loaded again
    assert of_a.read()[Quantity.THERMAL_THROTTLE] == Reading.ok(0.0)


def test_errors_by_place_are_a_view_of_their_own():
    """They are the errors of `volatile` again: beside them, not on top of them."""
    of_a = backend(Card(A, MemoryErrorCounter=3)).open(A)
    counters = of_a.read_ecc()
    assert counters["volatile_place/dram/corrected"] == Reading.ok(3.0)
    assert counters["volatile_place/sram/uncorrected"] == Reading.ok(3.0)
    assert {key.partition("/")[0] for key in counters} == {"volatile", "aggregate", "volatile_place"}


def test_retired_pages_are_told():
    told = backend(Card(A, RetiredPages=[4096, 8192])).open(A).describe()
    assert "4 memory pages retired before the run" in told.notes  # two for each of two causes


def test_the_slow_down_limit_by_its_distance():
    """Hopper tells no threshold: 63 °C now, 26 below its limit, slowing down 2 above that, off 8 above it."""
    told = backend(Card(A, TemperatureThreshold=NOT_SUPPORTED, MarginTemperature=26)).open(A).describe()
    assert told.slowdown_c == 91.0
    assert "shuts itself down at 97 °C" in told.notes


@pytest.mark.parametrize("threshold", [NOT_SUPPORTED, 0, 65535])
def test_a_limit_that_is_none_is_not_told(threshold):
    told = (
        backend(Card(A, TemperatureThreshold=threshold, MarginTemperature=NOT_SUPPORTED)).open(A).describe()
    )
    assert told.slowdown_c is None
    assert not any("shuts" in note for note in told.notes)


@pytest.mark.parametrize("name", [b"\xffNVIDIA", "NVIDIA \x1b[2J", "", "N/A", b"[N/A]", "two\nlines"])
def test_a_name_that_is_none_is_not_told(name):
    told = backend(Card(A, Name=name, VbiosVersion=name)).open(A).describe()
    assert (told.model, told.vbios) == (None, None)


MISSING = Raises(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def test_a_driver_without_the_newer_calls():
    card = Card(A, TemperatureV=MISSING, Temperature=61, CurrentClocksEventReasons=MISSING)
    of_a = backend(card).open(A)
    readings = of_a.read()
    assert readings[Quantity.TEMPERATURE_CORE_C] == Reading.ok(61.0)
    assert readings[Quantity.THERMAL_THROTTLE].status is ReadingStatus.UNSUPPORTED
    card.answers["CurrentClocksThrottleReasons"] = 0x40
    readings = of_a.read()
    assert readings[Quantity.THERMAL_THROTTLE] == Reading.ok(1.0)
    assert readings[Quantity.POWER_THROTTLE] == Reading.ok(0.0)


def test_a_driver_that_knows_only_the_first_memory_call():
    class Old(FakeNvml):
        def nvmlDeviceGetMemoryInfo(self, card: Card, version: int | None = None) -> Any:
            return self.answer(card, "MemoryInfo_v2" if version else "MemoryInfo")

    readings = NvidiaBackend(Path("/"), Old(Card(A, MemoryInfo_v2=MISSING))).open(A).read()
    assert readings[Quantity.MEMORY_TOTAL_BYTES] == Reading.ok(150754820096.0)
    assert readings[Quantity.MEMORY_FREE_BYTES] == Reading.ok(150110994432.0)


# Recorded answers


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "no answers of NVML were recorded"),
        (b"", "cannot be read: Expecting value"),
        (b"\0" * 4096, "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[1, 2]", "holds no answers of NVML"),
        (b'{"nvmlDeviceGetCount()": 1}', "holds no answers of NVML"),
    ],
)
def test_a_recording_that_is_none_is_said(tmp_path, content, why):
    if content is not None:
        (tmp_path / "nvml.json").write_bytes(content)
    with pytest.raises(Unavailable, match=why):
        NvidiaBackend(tmp_path).find()
