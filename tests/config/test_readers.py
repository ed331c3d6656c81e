"""What a person may write, value by value; and what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.config import readers
from soak.config.devices import devices, select
from soak.config.options import OPTIONS
from soak.config.readers import Refused, format_duration, without_password
from soak.core.errors import CannotRun
from soak.core.records import Device

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("48h", 48 * HOUR_MS),
        ("90m", 90 * 60_000),
        ("30s", 30_000),
        ("1h30m", HOUR_MS + 30 * 60_000),
        ("1h2m3s", HOUR_MS + 123_000),
        ("8760h", 8760 * HOUR_MS),
    ],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert OPTIONS["duration"].read(text) == duration_ms


@pytest.mark.parametrize(
    "text",
    [
        "48",
        "abc",
        "",
        "0",
        "-5m",
        "+5m",
        "1.5h",
        "5 m",
        " 5m",
        "5m\n",
        "30m1h",
        "5M",
        "1d",
        "500ms",
        "٣s",
        48,
        1.5,
        None,
        True,
    ],
)
def test_what_is_no_duration_is_told_the_legal_form(text: object) -> None:
    with pytest.raises(Refused, match="is not a duration; write it like 48h, 90m, 30s or 1h30m"):
        OPTIONS["duration"].read(text)


@pytest.mark.parametrize("text", ["0s", "0h0m0s", "8761h", "999999999h"])
def test_a_duration_out_of_range_is_told_the_range(text: str) -> None:
    with pytest.raises(Refused, match="out of range; legal: 1s to 8760h"):
        OPTIONS["duration"].read(text)


def test_only_a_wait_may_be_nothing() -> None:
    assert OPTIONS["warmup"].read("0s") == 0
    assert OPTIONS["linger"].read("0s") == 0


@given(st.integers(1, 8760 * 3600))
def test_a_duration_survives_being_written(duration_s: int) -> None:
    assert OPTIONS["duration"].read(format_duration(duration_s * 1000)) == duration_s * 1000


@pytest.mark.parametrize(
    ("text", "lowest", "highest"),
    [("512:4096", 512, 4096), ("1:1", 1, 1), ("1024", 1024, 1024), (77, 77, 77)],
)
def test_sequence_lengths(text: object, lowest: int, highest: int) -> None:
    assert readers.seq_len(text) == (lowest, highest)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4096:512", "lowest above its highest; write 512:4096"),
        ("0:10", "out of range"),
        ("10:200000", "out of range"),
        ("a:b", "not a range"),
        ("1.5:3", "not a range"),
        ("-1:5", "not a range"),
        ("1:2:3", "not a range"),
        (":5", "not a range"),
        ("", "not a range"),
        (True, "not a range"),
        ([512, 4096], "not a range"),
    ],
)
def test_what_is_no_range_of_sequence_lengths(text: object, words: str) -> None:
    with pytest.raises(Refused, match=words):
        readers.seq_len(text)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("heads", "0"),
        ("heads", "sixteen"),
        ("heads", 1.0),
        ("heads", True),
        ("head_dim", "96"),
        ("head_dim", 128.5),
        ("tokens", "-1"),
        ("seed", "-1"),
        ("seed", str(2**63)),
        ("expect_gpus", "0"),
        ("on_interrupt", "resume"),
        ("stop_on", "warning"),
        ("log_level", "INFO"),
        ("accept_inconclusive", "perhaps"),
        ("accept_inconclusive", 1),
        ("waive", "gradient"),
        ("waive", "ecc,faults"),
        ("run_id", "latest"),
        ("run_id", "a b"),
        ("run_id", "../../etc"),
        ("run_id", "x" * 65),
        ("kernel", "cublas"),
        ("listen", "9868"),
        ("listen", "localhost:99999"),
        ("listen", "::1:9868"),
        ("data_dir", "~/soak"),
        ("data_dir", ""),
        ("database", "soak.db"),
        ("database", "mysql://localhost/soak"),
        ("database", "sqlite:soak.db"),
        ("database", "sqlite://"),
        ("database", "sqlite:///:memory:"),
        ("database", "http://[broken"),
        ("label", "rack"),
        ("label", "9=x"),
        ("label", "run_id=x"),
        ("label", "a=1,a=2"),
        ("label", "a=\x07"),
        ("label", [f"k{i}=1" for i in range(17)]),
        ("label", [1]),
    ],
)
def test_what_cannot_be_meant_is_refused(option: str, value: object) -> None:
    with pytest.raises(Refused):
        OPTIONS[option].read(value)


@pytest.mark.parametrize(
    ("option", "written", "value"),
    [
        ("heads", "16", 16),
        ("head_dim", "64", 64),
        ("tokens", 0, 0),
        ("seed", str(2**63 - 1), 2**63 - 1),
        ("accept_inconclusive", "yes", True),
        ("accept_inconclusive", "0", False),
        ("waive", ["ecc", "ecc"], ("ecc",)),
        ("run_id", "burn-in.2026_7", "burn-in.2026_7"),
        ("listen", "0.0.0.0:9868", ("0.0.0.0", 9868)),
        ("listen", "[::1]:0", ("::1", 0)),
        ("data_dir", "/data", Path("/data")),
        ("database", "postgresql://soak:pw@db/soak", "postgresql://soak:pw@db/soak"),
        ("label", "rack=r 7,site=Köln=Süd", {"rack": "r 7", "site": "Köln=Süd"}),
        ("label", {"rack": "r7"}, {"rack": "r7"}),
    ],
)
def test_what_can_be_meant_is_read(option: str, written: object, value: Any) -> None:
    assert OPTIONS[option].read(written) == value


def test_a_password_is_never_shown() -> None:
    assert without_password("postgresql://soak:p%40w@db:5432/soak?sslmode=require") == (
        "postgresql://soak:***@db:5432/soak?sslmode=require"
    )
    for password in ("p/w", "p?w", "p#w", "p@w", "p:w", "", "p/w@x"):
        shown = without_password(f"postgresql+psycopg://soak:{password}@db:5432/soak")
        assert shown == "postgresql+psycopg://soak:***@db:5432/soak", password
    assert without_password("postgresql:///soak?user=a&password=p%2Fw&host=/run") == (
        "postgresql:///soak?user=a&password=***&host=/run"
    )
    for harmless in ("sqlite:////data/soak.db", "sqlite:////da:ta/so@ak.db", "postgresql://soak@db/soak"):
        assert without_password(harmless) == harmless


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all", ("all",)),
        ("CPU", ("cpu",)),
        ("cuda:0,1", ("cuda:0", "cuda:1")),
        ("cuda:0, cuda:01", ("cuda:0", "cuda:1")),
        ("0000:33:00.0", ("0000:33:00.0",)),
        ("33:00.0", ("0000:33:00.0",)),
        ("00000000:AF:00.0", ("0000:af:00.0",)),
        ("10000:e1:00.0", ("10000:e1:00.0",)),
        ("GPU-6f1c0c8a-5C0E-11ee-9d3f-0123456789ab", ("GPU-6f1c0c8a-5c0e-11ee-9d3f-0123456789ab",)),
        (["33:00.0", "cuda:1"], ("0000:33:00.0", "cuda:1")),
    ],
)
def test_devices_have_one_spelling(text: object, names: tuple[str, ...]) -> None:
    assert devices(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu",
        "0",
        "0,cuda:1",
        "cuda:",
        "cuda:-1",
        "cuda",
        "cpu:0",
        "hip:0",
        "33:00",
        "33:20.0",
        "33:00.8",
        "GPU-",
        "MIG-1a2b3c4d5e",
        "all,cpu",
        "cpu,cuda:0",
        "all,33:00.0",
        "cuda:0,0",
        "33:00.0,0000:33:00.0",
        "cuda:0,,cuda:1",
        0,
        None,
    ],
)
def test_what_is_no_device_is_refused(text: object) -> None:
    with pytest.raises(Refused):
        devices(text)


FIRST = Device("0000:33:00.0", "amd", 0, uuid="GPU-AAAA0000bbbb1111")
SECOND = Device("0000:44:00.0", "amd", 1, uuid="cccc2222dddd3333")
CPU = Device("cpu", "cpu")


def test_cards_are_found_by_any_of_their_names() -> None:
    found = (FIRST, SECOND, CPU)
    assert select(devices("all"), found) == (FIRST, SECOND)
    assert select(devices("cpu"), found) == (CPU,)
    assert select(devices("cuda:1,0"), found) == (SECOND, FIRST)
    assert select(devices("44:00.0,GPU-aaaa0000BBBB1111"), found) == (SECOND, FIRST)
    assert select(devices("GPU-CCCC2222dddd3333"), found) == (SECOND,)


@pytest.mark.parametrize(
    ("text", "found", "words"),
    [
        ("cuda:2", (FIRST, SECOND), "cuda:2 is not there; this machine offers 0000:33:00.0, 0000:44:00.0"),
        ("all", (CPU,), "offers no GPU"),
        ("cpu", (), "cpu is not there"),
        ("GPU-ffffffff", (Device("0000:33:00.0", "amd"),), "GPU-ffffffff is not there"),
        ("33:00.0,cuda:0", (FIRST,), "0000:33:00.0 is named twice, once as cuda:0"),
    ],
)
def test_a_card_that_is_not_there_is_named(text: str, found: tuple[Device, ...], words: str) -> None:
    with pytest.raises(CannotRun, match=words):
        select(devices(text), found)
