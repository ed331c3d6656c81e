"""amdgpu over trees: which cards there are, what they say, and what it means when they do not."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from pathlib import Path

import pytest

from soak.core.ports import Happening
from soak.core.records import Poll, Quantity, Reading, ReadingStatus
from soak.telemetry import sysfs
from soak.telemetry.amd import AmdBackend
from soak.telemetry.pci import gpus_on_bus
from soak.telemetry.sensors import CardGone, Sensor, Unavailable

MI50 = Path(__file__).parents[1] / "captures/amd__instinct-mi50-32gb__by-hand/root"
UTILISATION = Quantity.UTILISATION_PCT


def card(number: int, address: str, driver: str = "amdgpu", **files: str) -> dict[str, str]:
    folder = f"sys/class/drm/card{number}/device"
    told = {
        "uevent": f"DRIVER={driver}\nPCI_SLOT_NAME={address}\n",
        "gpu_busy_percent": "99\n",
        "vendor": "0x1002\n",
    }
    return {f"{folder}/{name.replace('__', '/')}": text for name, text in (told | files).items()}


@pytest.fixture
def mi50(tmp_path: Path) -> Path:
    """A copy of the MI50 that a test may change; its card's folder is `device(root)`."""
    return Path(shutil.copytree(MI50, tmp_path / "mi50", symlinks=True))


def device(root: Path) -> Path:
    return (root / "sys/class/drm/card4/device").resolve()


def sensor(root: Path, gpu: str = "0000:33:00.0") -> Sensor:
    return AmdBackend(root).open(gpu)


# Which cards (A07)


def test_card_numbers_have_gaps_and_foreign_cards_between(tree):
    root = tree(
        card(0, "0000:02:00.0", driver="ast")
        | card(17, "0000:c3:00.0", gpu_busy_percent="17\n")
        | card(9, "0000:83:00.0", gpu_busy_percent="9\n")
        | card(1, "0000:43:00.0", gpu_busy_percent="1\n")
        | {
            "sys/class/drm/card1-DP-1/status": "connected\n",
            "sys/class/drm/card1-DP-1/uevent": "DRIVER=amdgpu\n",
        }
        | {f"sys/class/drm/renderD{n}/device/uevent": "DRIVER=amdgpu\n" for n in (128, 129, 130)}
        | {"sys/class/drm/version": "drm 1.1.0 20060810\n"}
    )
    backend = AmdBackend(root)
    assert list(backend.find()) == ["0000:43:00.0", "0000:83:00.0", "0000:c3:00.0"]
    for gpu, busy in (("0000:43:00.0", 1.0), ("0000:83:00.0", 9.0), ("0000:c3:00.0", 17.0)):
        assert backend.open(gpu).read()[UTILISATION] == Reading.ok(busy)
    assert [backend.open(gpu).describe().index for gpu in backend.find()] == [0, 1, 2]
    with pytest.raises(CardGone):
        backend.open("0000:02:00.0")


def test_a_card_of_the_driver_without_a_drm_node_is_seen(tree):
    root = tree(card(1, "0000:43:00.0"))
    bound = root / "sys/bus/pci/devices/0000:83:00.0"
    bound.mkdir(parents=True)
    drivers = root / "sys/bus/pci/drivers/amdgpu"
    drivers.mkdir(parents=True)
    (drivers / "0000:83:00.0").symlink_to(bound)
    (drivers / "module").mkdir()
    backend = AmdBackend(root)
    assert list(backend.find()) == ["0000:43:00.0", "0000:83:00.0"]
    readings = backend.open("0000:83:00.0").read()
    assert readings[UTILISATION].status is ReadingStatus.UNSUPPORTED


def test_the_bus_is_counted_with_and_without_a_driver(mi50):
    assert gpus_on_bus(mi50, "amd") == ("0000:33:00.0",)
    assert gpus_on_bus(mi50, "nvidia") == ()
    unbound = mi50 / "sys/bus/pci/devices/0000:e3:00.0"
    unbound.mkdir()
    (unbound / "vendor").write_text("0x1002\n")
    (unbound / "class").write_text("0x038000\n")
    audio = mi50 / "sys/bus/pci/devices/0000:e3:00.1"
    audio.mkdir()
    (audio / "vendor").write_text("0x1002\n")
    (audio / "class").write_text("0x040300\n")
    assert gpus_on_bus(mi50, "amd") == ("0000:33:00.0", "0000:e3:00.0")


def test_no_driver_is_said(tmp_path):
    with pytest.raises(Unavailable, match="amdgpu driver is not loaded"):
        AmdBackend(tmp_path).find()


# Who it is


@pytest.mark.parametrize(
    ("device_id", "vbios", "model", "note"),
    [
        ("0x66a1", "113-D1631400-111", "AMD Instinct MI50 16GB", "genuine AMD Instinct MI50 16GB"),
        ("0x66a1", "113-D1631700-111", "AMD Instinct MI50 32GB", "genuine AMD Instinct MI50 32GB"),
        ("0x66af", "113-D3600200-105", "AMD Radeon VII", "carries Radeon VII firmware"),
        ("0x66a1", "113-D3600200-105", "AMD Radeon VII", "carries Radeon VII firmware"),
        ("0x66a1", "113-X9999999-000", "AMD Instinct MI50/MI60", "Vega 20 of an unknown board"),
        ("0x66a1", "", "AMD Instinct MI50/MI60", "Vega 20 of an unknown board"),
    ],
)
def test_a_genuine_mi50_and_what_is_sold_as_one(mi50, device_id, vbios, model, note):
    (device(mi50) / "device").write_text(device_id + "\n")
    (device(mi50) / "vbios_version").write_text(vbios + "\n")
    told = sensor(mi50).describe()
    assert told.model == model
    assert any(text.startswith(note) for text in told.notes)
    assert told.arch == "gfx906"


@pytest.mark.parametrize("raw", ["\n", "0000000000000000\n", "", "\xff\xfe", "not hexadecimal!\n"])
def test_an_absent_unique_id_is_no_identity(mi50, raw):
    (device(mi50) / "unique_id").write_text(raw, encoding="latin-1")
    assert sensor(mi50).describe().uuid is None


def test_arch_is_the_compute_drivers_word_for_this_address(mi50):
    node = mi50 / "sys/class/kfd/kfd/topology/nodes/2/properties"
    node.parent.mkdir()
    node.write_text("gfx_target_version 90010\nlocation_id 13056\ndomain 1\n")
    assert sensor(mi50).describe().arch == "gfx906"
    (mi50 / "sys/class/kfd/kfd/topology/nodes/1/properties").write_text(
        "gfx_target_version 90010\nlocation_id 13056\n"
    )
    assert sensor(mi50).describe().arch == "gfx90a"
    shutil.rmtree(mi50 / "sys/class/kfd")
    assert sensor(mi50).describe().arch == "gfx906"  # by its PCI id


# What it says


def test_power_is_whichever_file_answers_and_the_note_says_which(mi50):
    hwmon = device(mi50) / "hwmon/hwmon3"
    (hwmon / "power1_average").write_text("180000000\n")
    told = sensor(mi50).describe()
    assert told.supported[Quantity.POWER_W] == Reading.ok(180.0)
    assert "power is hwmon's power1_average" in told.notes
    (hwmon / "power1_average").write_text("\n")
    told = sensor(mi50).describe()
    assert told.supported[Quantity.POWER_W] == Reading.ok(221.0)
    assert "power is hwmon's power1_input" in told.notes


def test_a_zero_of_gpu_metrics_is_no_power(mi50):
    """The firmware of many MI50s leaves the field 0; 0 W would be a sensor that is not there."""
    (device(mi50) / "hwmon/hwmon3/power1_input").unlink()
    metrics = bytearray((device(mi50) / "gpu_metrics").read_bytes())
    metrics[34:36] = b"\0\0"
    (device(mi50) / "gpu_metrics").write_bytes(metrics)
    assert sensor(mi50).read()[Quantity.POWER_W].status is ReadingStatus.UNSUPPORTED


@pytest.mark.parametrize(
    ("files", "quantity", "expected"),
    [
        ({"gpu_busy_percent": "1980\n"}, UTILISATION, "impossible value '1980'"),
        ({"gpu_busy_percent": "-1\n"}, UTILISATION, "impossible value '-1'"),
        ({"hwmon/hwmon3/temp1_input": "65535000\n"}, Quantity.TEMPERATURE_EDGE_C, "impossible"),
        ({"hwmon/hwmon3/temp3_input": "0\n"}, Quantity.TEMPERATURE_MEMORY_C, "impossible"),
        ({"hwmon/hwmon3/temp2_input": "-273150\n"}, Quantity.TEMPERATURE_JUNCTION_C, "impossible"),
        ({"hwmon/hwmon3/power1_input": "\n"}, Quantity.POWER_W, "says ''"),
        ({"mem_info_vram_used": "34342961153\n"}, Quantity.MEMORY_FREE_BYTES, "bytes used of"),
        ({"mem_info_vram_total": "\0\0\0"}, Quantity.MEMORY_FREE_BYTES, "says ''"),
        ({"current_link_width": "63\n"}, Quantity.PCIE_WIDTH, None),  # the bridges still tell
        ({"pcie_replay_count": "4294967295\n"}, Quantity.PCIE_REPLAYS, "impossible"),
    ],
)
def test_impossible_values_are_unreadable(mi50, files, quantity, expected):
    for name, text in files.items():
        (device(mi50) / name).write_text(text)
    reading = sensor(mi50).read()[quantity]
    if expected is None:
        assert reading.value == 16.0
    else:
        assert reading.status is ReadingStatus.UNREADABLE
        assert expected in reading.reason


def test_missing_files_are_unsupported(mi50):
    for name in ("mem_busy_percent", "pcie_replay_count", "mem_info_vram_used", "gpu_metrics"):
        (device(mi50) / name).unlink()
    shutil.rmtree(device(mi50) / "hwmon")
    readings = sensor(mi50).read()
    for quantity in (
        *(
            Quantity.MEMORY_BUSY_PCT,
            Quantity.PCIE_REPLAYS,
            Quantity.MEMORY_FREE_BYTES,
            Quantity.THERMAL_THROTTLE,
        ),
        *(Quantity.POWER_W, Quantity.TEMPERATURE_EDGE_C, Quantity.TEMPERATURE_MEMORY_C),
    ):
        assert readings[quantity].status is ReadingStatus.UNSUPPORTED, quantity
    assert readings[Quantity.CLOCK_CORE_HZ] == Reading.ok(1725e6)  # by the starred level


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0: 350Mhz *\n1: 800Mhz \n", 350e6),
        ("0: 1000Mhz * (DPM disabled)\n", 1000e6),
        ("0: 350Mhz \n1: 800Mhz \n", None),  # no star
        ("0: 350Mhz *\n1: 800Mhz *\n", None),  # two: which?
        ("", None),
    ],
)
def test_the_starred_level(mi50, text, expected):
    shutil.rmtree(device(mi50) / "hwmon")
    (device(mi50) / "gpu_metrics").unlink()
    (device(mi50) / "pp_dpm_mclk").write_text(text)
    assert sensor(mi50).read()[Quantity.CLOCK_MEMORY_HZ].value == expected


def test_the_link_is_the_narrowest_up_to_the_root(mi50):
    """A Vega 20's own link always tells 16 GT/s x16; the slot's is its bridge's."""
    readings = sensor(mi50).read()
    assert readings[Quantity.PCIE_SPEED_GTS] == Reading.ok(8.0)
    assert readings[Quantity.PCIE_WIDTH] == Reading.ok(16.0)
    (device(mi50).parents[1] / "current_link_width").write_text("4\n")
    assert sensor(mi50).read()[Quantity.PCIE_WIDTH] == Reading.ok(4.0)


@pytest.mark.parametrize(
    ("bits", "thermal", "power"),
    [
        (0, 0.0, 0.0),
        (1 << 2, 1.0, 0.0),
        (1 << 3, 1.0, 0.0),
        (1 << 13, 0.0, 1.0),
        (1 << 11 | 1 << 10, 1.0, 1.0),
    ],
)
def test_throttle_bits_of_vega_20(mi50, bits, thermal, power):
    metrics = bytearray((device(mi50) / "gpu_metrics").read_bytes())
    metrics[68:72] = bits.to_bytes(4, "little")
    (device(mi50) / "gpu_metrics").write_bytes(metrics)
    readings = sensor(mi50).read()
    assert readings[Quantity.THERMAL_THROTTLE] == Reading.ok(thermal)
    assert readings[Quantity.POWER_THROTTLE] == Reading.ok(power)


def test_pcie_bw_is_never_read(mi50):
    os.mkfifo(device(mi50) / "pcie_bw")  # a read would never return
    subject = sensor(mi50)
    subject.describe()
    subject.read()
    subject.read_ecc()


# When it does not say (A05)


class Refusing:
    """Real reads, but for one file name, whose reads answer with these errors in turn and then really."""

    def __init__(self, name: str, *errors: int) -> None:
        self.name, self.errors, self.read = name, list(errors), sysfs.read_bytes

    def __call__(self, path: Path, limit: int = sysfs.PAGE) -> bytes:
        if path.name == self.name and self.errors:
            code = self.errors.pop(0)
            raise OSError(code, os.strerror(code))
        return self.read(path, limit)


def test_busy_once_is_read_again(mi50, monkeypatch):
    subject = sensor(mi50)
    monkeypatch.setattr(sysfs, "read_bytes", Refusing("gpu_busy_percent", errno.EBUSY))
    assert subject.read()[UTILISATION] == Reading.ok(99.0)


def test_eperm_is_a_suspected_reset_and_no_question_of_rights(mi50, monkeypatch):
    subject = sensor(mi50)
    monkeypatch.setattr(sysfs, "read_bytes", Refusing("gpu_busy_percent", *[errno.EPERM] * 2))
    reading = subject.read()[UTILISATION]
    assert reading.status is ReadingStatus.UNREADABLE
    assert "EPERM" in reading.reason
    assert "reset or suspend suspected" in reading.reason
    assert "root" not in reading.reason
    assert subject.read()[UTILISATION] == Reading.ok(99.0)


def test_einval_for_good_names_another_source(mi50, monkeypatch):
    monkeypatch.setattr(sysfs, "read_bytes", Refusing("gpu_busy_percent", *[errno.EINVAL] * 10))
    told = sensor(mi50).describe()
    assert told.supported[UTILISATION] == Reading.ok(99.0)
    assert "utilisation_pct is taken from gpu_metrics" in told.notes
    (device(mi50) / "gpu_metrics").unlink()
    monkeypatch.setattr(sysfs, "read_bytes", Refusing("gpu_busy_percent", *[errno.EINVAL] * 10))
    assert "EINVAL" in sensor(mi50).describe().supported[UTILISATION].reason


def test_a_source_once_chosen_is_kept(mi50):
    """A reset at the wrong moment must not change where a figure comes from."""
    subject = sensor(mi50)
    (device(mi50) / "gpu_busy_percent").write_text("\n")
    assert subject.read()[UTILISATION].status is ReadingStatus.UNREADABLE


@pytest.mark.parametrize("code", [errno.ENODEV])
def test_a_card_that_is_no_device_any_more_is_gone(mi50, monkeypatch, code):
    subject = sensor(mi50)
    monkeypatch.setattr(sysfs, "read_bytes", Refusing("gpu_busy_percent", code))
    with pytest.raises(CardGone):
        subject.read()


def test_a_card_that_answers_all_ones_is_gone(mi50):
    subject = sensor(mi50)
    (device(mi50) / "gpu_busy_percent").write_text("\n")
    (device(mi50) / "config").write_bytes(b"\x02\x10\xa1\x66" + bytes(60))
    assert subject.read()[UTILISATION].status is ReadingStatus.UNREADABLE
    (device(mi50) / "config").write_bytes(b"\xff" * 64)
    with pytest.raises(CardGone, match="fell off the bus"):
        subject.read()


def test_a_card_whose_folder_is_gone_is_gone_and_comes_back_under_another_number(tree):
    root = tree(card(1, "0000:43:00.0") | card(9, "0000:83:00.0", gpu_busy_percent="9\n"))
    subject = sensor(root, "0000:43:00.0")
    (root / "sys/class/drm/card1").rename(root / "sys/class/drm/card5")  # numbered anew: still there
    assert subject.read()[UTILISATION] == Reading.ok(99.0)
    shutil.rmtree(root / "sys/class/drm/card5")
    with pytest.raises(CardGone):
        subject.read()
    with pytest.raises(CardGone):
        sensor(root, "0000:43:00.0")
    assert sensor(root, "0000:83:00.0").read()[UTILISATION] == Reading.ok(9.0)


def test_a_card_whose_link_dangles_is_gone(mi50):
    subject = sensor(mi50)
    card_folder = device(mi50)
    card_folder.rename(mi50 / "away")  # what led to it stays: sys/class/drm, sys/bus/pci, the driver's links
    assert (mi50 / "sys/class/drm/card4/device").is_symlink()
    with pytest.raises(CardGone, match="gone from the amdgpu driver"):
        subject.read()
    assert list(AmdBackend(mi50).find()) == []
    with pytest.raises(CardGone, match="gone from the amdgpu driver"):
        sensor(mi50)
    (mi50 / "away").rename(card_folder)
    assert subject.read()[UTILISATION] == Reading.ok(99.0)


def test_a_card_that_its_driver_let_go_of_is_gone_though_its_folder_stays(mi50):
    """As after an unbind: the PCI device is there, with none of the driver's files."""
    subject = sensor(mi50)
    for path in sorted(device(mi50).iterdir()):
        if path.name in ("hwmon", "ras"):
            shutil.rmtree(path)
        elif path.name not in ("vendor", "device", "class", "uevent") and path.is_file():
            path.unlink()
    uevent = device(mi50) / "uevent"
    uevent.write_text(uevent.read_text().replace("DRIVER=amdgpu\n", ""))
    (mi50 / "sys/bus/pci/drivers/amdgpu/0000:33:00.0").unlink()
    shutil.rmtree(mi50 / "sys/class/drm/card4")
    with pytest.raises(CardGone, match="gone from the amdgpu driver"):
        subject.read()


def test_what_was_away_for_a_moment_is_not_taken_for_absent(mi50):
    """A card that is opened, or looked for again, while its folder is only half there."""
    expected, subject = sensor(mi50).read(), sensor(mi50)
    before = subject.read_ecc()
    hidden = {name: (device(mi50) / name).read_text() for name in ("device", "gpu_busy_percent")}
    (device(mi50) / "device").unlink()
    opened_meanwhile = sensor(mi50)
    assert opened_meanwhile.read()[Quantity.THERMAL_THROTTLE].status is ReadingStatus.UNSUPPORTED
    (device(mi50) / "gpu_busy_percent").unlink()
    assert subject.read()[UTILISATION].value is None
    (device(mi50) / "ras/umc_err_count").unlink()
    for name, text in hidden.items():
        (device(mi50) / name).write_text(text)
    for each in (subject, opened_meanwhile):
        assert each.read() == expected
    assert subject.read_ecc().keys() == before.keys()


def test_hwmon_numbered_anew_is_found_again(mi50):
    subject = sensor(mi50)
    (device(mi50) / "hwmon/hwmon3").rename(device(mi50) / "hwmon/hwmon11")
    readings = subject.read()
    assert readings[Quantity.TEMPERATURE_EDGE_C] == Reading.ok(70.0)
    assert subject.read()[Quantity.POWER_W] == Reading.ok(221.0)


# Error counters (A04, A08, A20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ue: 0\nce: 3\n", {"corrected": 3.0, "uncorrected": 0.0}),
        ("ue: 0\nce: 3\nde: 1\n", {"corrected": 3.0, "uncorrected": 0.0, "deferred": 1.0}),
        ("ce: 3\nue: 7\n", {"corrected": 3.0, "uncorrected": 7.0}),  # by key, not by line
        ("ue: 0\nce: 3\npoison: 4\n", {"corrected": 3.0, "uncorrected": 0.0}),
        ("Query currently inaccessible\n", None),
        ("", None),
        ("\n", None),
        ("ue: 0\n", None),
        ("ue: x\nce: 0\n", None),
        ("0\n3\n", None),
    ],
)
def test_ras_files_by_key(mi50, text, expected):
    (device(mi50) / "ras/umc_err_count").write_text(text)
    counters = sensor(mi50).read_ecc()
    umc = {key.removeprefix("ras/umc/"): reading for key, reading in counters.items() if "/umc/" in key}
    if expected is None:
        assert set(umc) == {"corrected", "uncorrected"}
        for reading in umc.values():
            assert reading.status is ReadingStatus.UNREADABLE
            assert "reset suspected" in reading.reason
    else:
        assert {kind: reading.value for kind, reading in umc.items()} == expected
    assert counters["ras/gfx/corrected"] == Reading.ok(0.0)


def test_a_block_in_reset_keeps_its_keys_without_values(mi50):
    subject = sensor(mi50)
    before = subject.read_ecc()
    (device(mi50) / "ras/umc_err_count").write_text("Query currently inaccessible\n")
    during = subject.read_ecc()
    assert during.keys() == before.keys()
    assert during["ras/umc/deferred"].status is ReadingStatus.UNREADABLE
    (device(mi50) / "ras/umc_err_count").unlink()
    assert subject.read_ecc().keys() == before.keys()


def test_an_unreadable_counter_is_an_unreadable_baseline(mi50, monkeypatch):
    monkeypatch.setattr(sysfs, "read_bytes", Refusing("gfx_err_count", *[errno.EINVAL] * 10))
    told = sensor(mi50).describe()
    assert told.ecc.status is ReadingStatus.UNREADABLE
    assert "EINVAL" in told.ecc.reason
    assert told.ecc_baseline["ras/umc/corrected"] == Reading.ok(0.0)


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda root: shutil.rmtree(device(root) / "ras"), "firmware declares no ECC"),
        (
            lambda root: (
                shutil.rmtree(device(root) / "ras"),
                (root / "sys/module/amdgpu/parameters/ras_enable").write_text("0\n"),
            ),
            "amdgpu.ras_enable=0",
        ),
        (
            lambda root: [path.unlink() for path in (device(root) / "ras").glob("*_err_count")],
            "counts no errors",
        ),
    ],
)
def test_no_ecc_is_unsupported_with_the_reason_found(mi50, prepare, reason):
    prepare(mi50)
    subject = sensor(mi50)
    told = subject.describe()
    assert told.ecc.status is ReadingStatus.UNSUPPORTED
    assert reason in told.ecc.reason
    assert told.ecc_baseline == {}
    assert subject.read_ecc() is None


def test_a_suspended_card_is_not_asked_for_its_errors(mi50):
    (device(mi50) / "power/runtime_status").write_text("suspended\n")
    for reading in sensor(mi50).read_ecc().values():
        assert reading == Reading.unreadable("the card is asleep: 'suspended'")


def test_counts_of_a_suspended_card_are_rejected_by_their_rise(mi50):
    subject = sensor(mi50)
    subject.read_ecc()
    bogus = (Path(__file__).parents[1] / "captures/ras/umc_err_count.bogus_suspended").read_text()
    (device(mi50) / "ras/umc_err_count").write_text(bogus)
    counters = subject.read_ecc()
    assert counters["ras/umc/corrected"] == Reading.unreadable("impossible rise from 0 to 1048560")
    (device(mi50) / "ras/umc_err_count").write_text("ue: 0\nce: 2\nde: 0\n")
    assert subject.read_ecc()["ras/umc/corrected"] == Reading.ok(2.0)


@pytest.mark.parametrize(
    "path", sorted((MI50.parents[1] / "ras").glob("*_err_count.*")), ids=lambda p: p.name
)
def test_every_recorded_ras_file_is_values_or_an_absence(mi50, path):
    (device(mi50) / "ras/umc_err_count").write_bytes(path.read_bytes())
    counters = sensor(mi50).read_ecc()
    values = {kind: counters[f"ras/umc/{kind}"].value for kind in ("corrected", "uncorrected")}
    expected = {
        "gfx_err_count.ue_ce": (0.0, 1.0),
        "umc_err_count.ue_ce": (1.0, 0.0),
        "umc_err_count.ue_ce_de": (0.0, 0.0),
        "umc_err_count.bogus_suspended": (1048560.0, 1048560.0),
        "umc_err_count.inaccessible": (None, None),
    }[path.name]
    assert (values["corrected"], values["uncorrected"]) == expected


def test_retired_pages_are_told(mi50):
    (device(mi50) / "ras/gpu_vram_bad_pages").write_text(
        "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n"
    )
    assert any(note.startswith("2 memory pages") for note in sensor(mi50).describe().notes)


# In the sampler


def test_a_tree_that_changes_while_it_is_read(mi50):
    """hwmon is numbered anew, files come and go, the card leaves and comes back, all in the midst of reads:
    a reading is what the files said at some moment, or an absence."""
    card_folder, done = device(mi50), threading.Event()
    hwmon = next((card_folder / "hwmon").iterdir())
    aside = card_folder.with_name("away")

    def disturb() -> None:
        for turn in itertools.cycle(range(4)):
            if done.wait(0.002):
                return
            if turn == 0:
                hwmon.rename(hwmon.with_name("hwmon9"))
            elif turn == 1:
                hwmon.with_name("hwmon9").rename(hwmon)
            elif turn == 2:
                card_folder.rename(aside)
            else:
                aside.rename(card_folder)

    backend, expected = AmdBackend(mi50), sensor(mi50).read()
    thread = threading.Thread(target=disturb)
    thread.start()
    n_values = n_gone = 0
    try:
        of_card = backend.open("0000:33:00.0")
        for _ in range(150):
            try:
                readings = of_card.read()
                backend.open("0000:33:00.0").describe()  # whatever it finds
                counters = of_card.read_ecc() or {}
            except CardGone:
                n_gone += 1
                continue
            for quantity, reading in readings.items():
                assert reading.value in (None, expected[quantity].value), quantity
                n_values += reading.value is not None
            assert all(reading.value in (None, 0.0) for reading in counters.values())
    finally:
        done.set()
        thread.join()
    if aside.exists():
        aside.rename(card_folder)
    if not hwmon.exists():
        hwmon.with_name("hwmon9").rename(hwmon)
    assert n_values > 100
    assert n_gone > 0
    assert of_card.read() == expected, "a card that is back is read as before"


def test_a_hung_card_stops_no_other(start, until, tree):
    """A09 among several cards: one read never returns, the others are polled on."""
    root = tree(card(1, "0000:43:00.0") | card(9, "0000:83:00.0") | card(17, "0000:c3:00.0"))
    sampler = start(("amd",), root)
    gpus = [told.gpu for told in sampler.devices()]
    hung = root / "sys/class/drm/card9/device/gpu_busy_percent"
    hung.unlink()
    os.mkfifo(hung)
    sampler.watch(gpus, 200, 1000)
    news = until(sampler, lambda n: sum(p.gpu == "0000:83:00.0" for p in n if isinstance(p, Poll)) >= 3)
    polls = [item for item in news if isinstance(item, Poll)]
    for poll in polls:
        if poll.gpu == "0000:83:00.0":
            assert "no answer in" in poll.readings[UTILISATION].reason
        else:
            assert poll.readings[UTILISATION] == Reading.ok(99.0)
    n_others = [sum(p.gpu == gpu for p in polls) for gpu in ("0000:43:00.0", "0000:c3:00.0")]
    assert all(n >= 8 for n in n_others), n_others


def test_a_card_that_vanishes_is_lost_once_and_its_values_stop(start, until, tree):
    root = tree(card(1, "0000:43:00.0") | card(9, "0000:83:00.0", gpu_busy_percent="9\n"))
    sampler = start(("amd",), root)
    sampler.devices()
    sampler.watch(["0000:43:00.0", "0000:83:00.0"], 100, 1000)
    until(sampler, lambda n: len(n) >= 4)
    shutil.rmtree(root / "sys/class/drm/card1")
    news = until(sampler, lambda n: sum(isinstance(item, Poll) for item in n) >= 20)
    lost = [item for item in news if isinstance(item, Happening)]
    assert [(item.kind, item.gpu) for item in lost] == [("device_lost", "0000:43:00.0")]
    after = [item for item in news[news.index(lost[0]) :] if isinstance(item, Poll)]
    for poll in after:
        if poll.gpu == "0000:43:00.0":
            assert poll.readings[UTILISATION].value is None
        else:
            assert poll.readings[UTILISATION] == Reading.ok(9.0)
