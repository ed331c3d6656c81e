"""From flags, environment, file and profile to one configuration, and back from what was stored."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak_kernels.members import MEMBERS
from sqlalchemy import make_url

import soak
from soak.config import COMMON, OPTIONS, Config, parse, parse_common, protocol_from_config, resolve
from soak.config.options import KERNELS
from soak.core.errors import EXIT_USAGE, ConfigError
from soak.core.records import Device

MI50 = Device("0000:33:00.0", "amd", arch="gfx906", memory_total_bytes=32 << 30)
H200 = Device("0000:45:00.0", "nvidia", arch="sm_90")
CPU = Device("cpu", "cpu", arch="x86_64")
HOME = {"HOME": "/home/ada"}


def configured(
    flags: Mapping[str, object | None] | None = None,
    environ: Mapping[str, str] | None = None,
    device: Device = MI50,
) -> Config:
    wanted = {"device": "cpu"} if device is CPU else {}
    return resolve(parse(wanted | dict(flags or {}), HOME | dict(environ or {})), [device], drawn_seed=7)


def refused(
    flags: Mapping[str, object | None] | None = None,
    environ: Mapping[str, str] | None = None,
    device: Device = MI50,
) -> str:
    with pytest.raises(ConfigError) as caught:
        configured(flags, environ, device)
    assert caught.value.exit_code == EXIT_USAGE
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence.removesuffix("\n")
    return sentence


def test_the_contract_s_defaults() -> None:
    config = configured()
    plan = config.protocol()
    assert (plan.duration_ms, plan.rotate_ms, plan.check_ms) == (172_800_000, 600_000, 3_600_000)
    assert (plan.sample_ms, plan.poll_ms, plan.warmup_ms) == (300_000, 1000, 1_800_000)
    assert (plan.seq_len_min, plan.seq_len_max) == (512, 4096)
    assert (plan.dtype, plan.head_dim, plan.heads, plan.tokens) == ("float16", 128, 16, 32768)
    assert (plan.kernel, plan.compare_every, plan.ecc_every_ms) == ("auto", 10, 10_000)
    assert config.device == ("all",)
    assert config.on_interrupt == "restart-clock"
    assert config.stop_on == "never"
    assert config.listen == ("127.0.0.1", 9868)
    assert config.linger_ms == 0
    assert config.database == "sqlite:////home/ada/.local/share/soak/soak.db"
    assert config.warnings == ()


def test_an_option_default_is_the_mi50_s_and_the_generic_profile_s_too() -> None:
    for device in (MI50, H200):
        config = configured(device=device)
        for option in OPTIONS.values():
            if option.in_profile:
                assert config.effective()[option.name] == option.default, option.name


def test_flags_beat_environment_beats_file_beats_profile_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "soak.toml"
    file.write_text('duration = "3h"\nheads = 4\nwarmup = "1m"\nlog_level = "debug"\n')
    environ = {"SOAK_CONFIG": str(file), "SOAK_DURATION": "2h", "SOAK_HEADS": "8"}
    config = configured({"duration": "1h", "heads": None}, environ)
    assert (config.duration_ms, config.sources["duration"]) == (3_600_000, "flag --duration")
    assert (config.heads, config.sources["heads"]) == (8, "environment SOAK_HEADS")
    assert (config.warmup_ms, config.sources["warmup"]) == (60_000, f"file {file}")
    assert (config.tokens, config.sources["tokens"]) == (32768, "profile mi50")
    assert (config.stop_on, config.sources["stop_on"]) == ("never", "default")
    assert (config.seed, config.sources["seed"]) == (7, "drawn")
    assert config.sources["config"] == "environment SOAK_CONFIG"


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_every_option_can_come_from_every_layer(option: str, tmp_path: Path) -> None:
    written = {
        "duration": "1h",
        "kernel": "flash_v2",
        "head_dim": "64",
        "heads": "2",
        "tokens": "8192",
        "seq_len": "64:128",
        "rotate_every": "1m",
        "check_every": "2m",
        "sample_every": "3m",
        "poll_every": "2s",
        "warmup": "4m",
        "seed": "5",
        "device": "cuda:0",
        "expect_gpus": "1",
        "profile": "generic",
        "waive": "ecc",
        "accept_inconclusive": "true",
        "data_dir": "/d",
        "database": "sqlite:////x.db",
        "run_id": "r",
        "on_interrupt": "stop",
        "stop_on": "fail",
        "label": "a=b",
        "listen": "[::]:1",
        "linger": "1s",
        "log_level": "error",
        "log_format": "json",
        "debug": "true",
    }
    file = tmp_path / "soak.toml"
    if option == "config":
        file.write_text("")
        assert (
            configured({"config": str(file)}).config
            == configured(None, {"SOAK_CONFIG": str(file)}).config
            == file
        )
        return
    file.write_text(f'{option} = "{written[option]}"\n')
    by_flag = configured({option: written[option]})
    by_environment = configured(None, {OPTIONS[option].variable: written[option]})
    by_file = configured({"config": str(file)})
    assert by_flag.effective()[option] == by_environment.effective()[option] == by_file.effective()[option]
    assert by_flag.effective()[option] != configured().effective()[option]
    assert by_file.sources[option] == f"file {file}"


def test_numbers_lists_and_tables_of_toml(tmp_path: Path) -> None:
    file = tmp_path / "soak.toml"
    file.write_text(
        'heads = 4\naccept_inconclusive = true\ndevice = ["cuda:0", "cuda:1"]\n[label]\nrack = "r7"\n'
    )
    config = configured({"config": file})
    assert (config.heads, config.accept_inconclusive, config.label) == (4, True, {"rack": "r7"})
    assert config.device == ("cuda:0", "cuda:1")


def test_what_is_empty_is_not_given() -> None:
    config = configured(
        {"duration": None, "label": [], "waive": ()}, {"SOAK_DURATION": "", "SOAK_LABEL": "a=b"}
    )
    assert config.sources["duration"] == "profile mi50"
    assert config.label == {"a": "b"}


def test_data_goes_to_the_xdg_folder() -> None:
    assert configured(None, {"XDG_DATA_HOME": "/xdg"}).data_dir == Path("/xdg/soak")
    config = configured({"data_dir": "/data"})
    assert config.database == "sqlite:////data/soak.db"
    with pytest.raises(ConfigError, match="HOME is not set; give --data-dir"):
        parse({}, {})
    assert parse({"data_dir": "/data"}, {}).settings["data_dir"].value == Path("/data")
    assert parse_common({}, {}, stores=False).log_level == "info", "what writes nothing down needs no folder"
    assert parse({}, {}, stores=False).device == ("all",)


def test_other_commands_find_the_same_database(tmp_path: Path) -> None:
    file = tmp_path / "soak.toml"
    file.write_text('data_dir = "/srv/soak"\nduration = "1h"\n')
    common = parse_common({"log_level": "error"}, {"SOAK_CONFIG": str(file), "SOAK_DURATION": "nonsense"})
    assert common.database == configured({"config": file}).database == "sqlite:////srv/soak/soak.db"
    assert (common.log_level, common.log_format, common.debug) == ("error", "text", False)
    assert common.sources.keys() == set(COMMON) - {"config"}
    assert parse_common({}, HOME, "simulated.db").database.endswith("/simulated.db")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"duration": "48"}, "--duration: '48' is not a duration; write it like 48h, 90m, 30s or 1h30m."),
        ({"seq_len": "4096:512"}, "--seq-len: '4096:512' has its lowest above its highest; write 512:4096."),
        ({"kernel": "cublas"}, "--kernel: 'cublas' is unknown; legal: auto, flash_v1, flash_v2, "),
        (
            {"device": "cpu", "kernel": "flash_v2"},
            "The kernel flash_v2 does not run on cpu; leave --kernel at auto.",
        ),
        ({"device": "gpu7"}, "--device: 'gpu7' is not a device; legal: all, cpu, cuda:0,1,"),
        ({"profile": "mi60"}, "There is no profile 'mi60'; legal: auto, mi50, generic, cpu, or the path"),
        ({"profile": "/"}, "The profile / cannot be read"),
        ({"config": "/nowhere.toml"}, "There is no configuration file /nowhere.toml"),
        (
            {"tokens": "4095"},
            "--tokens 4095 holds no whole sequence of --seq-len 512:4096; give at least 4096",
        ),
        ({"poll_every": "7s"}, "--sample-every 5m is not a multiple of --poll-every 7s; make it one."),
        ({"poll_every": "2s", "duration": "61s"}, "--duration 1m1s is not a multiple of --poll-every 2s"),
        ({"duration": "8760h", "sample_every": "10s"}, "makes 3153600 rows a card over --duration 8760h"),
        ({"duration": "8760h", "rotate_every": "1s"}, "--rotate-every 1s makes"),
        ({"device": "cpu", "expect_gpus": "2"}, "--expect-gpus 2 makes no sense with --device cpu"),
        ({"device": "cuda:0,1", "expect_gpus": "3"}, "--expect-gpus is 3 and --device names 2"),
        ({"device": "cpu", "profile": "mi50"}, "The profile mi50 is for GPUs, and --device is cpu"),
        ({"profile": "cpu"}, "The profile cpu is for the CPU, and --device is all"),
    ],
)
def test_nonsense_is_refused_before_a_card_is_looked_for(flags: Mapping[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(flags, HOME)
    assert words in str(caught.value)
    assert words in refused(flags)


def test_a_mistake_is_told_with_the_place_where_it_was_written(tmp_path: Path) -> None:
    assert refused(None, {"SOAK_HEADS": "many"}).startswith("SOAK_HEADS: 'many' is not a whole number")
    file = tmp_path / "soak.toml"
    file.write_text("duration = 48\n")
    assert refused({"config": file}).startswith(f"duration of file {file}: 48 is not a duration")
    file.write_text("durations = 48\n")
    assert "unknown key durations; legal: accept_inconclusive, check_every" in refused({"config": file})
    file.write_text("[criteria.ecc]\nrequired = false\n")
    assert "unknown key criteria (limits belong into a profile file)" in refused({"config": file})
    file.write_text("duration = \n")
    assert "is not TOML" in refused({"config": file})
    file.write_bytes(b"\xff\xfe")
    assert "cannot be read" in refused({"config": file})
    file.write_text('config = "other.toml"\n')
    assert "unknown key config" in refused({"config": file})


def test_a_slip_in_the_environment_is_warned_about() -> None:
    strange = {
        "SOAK_DURATON": "1h",
        "SOAK_PORT": "tcp://10.0.0.1:9868",
        "SOAK_SERVICE_HOST": "10.0.0.1",
        "SOAKED": "1",
    }
    (warning,) = configured(None, strange).warnings
    assert (
        warning
        == "The environment variable SOAK_DURATON means nothing to soak; perhaps SOAK_DURATION is meant."
    )


def test_a_warm_up_longer_than_the_run_is_warned_about() -> None:
    (warning,) = configured({"duration": "30m"}).warnings
    assert warning.startswith("No sample of --duration 30m lies after --warmup 30m")
    assert configured({"duration": "35m"}).warnings == ()
    assert configured({"duration": "30m"}, device=CPU).warnings == ()  # not required there


def test_the_kernels_are_those_of_the_load() -> None:
    """The CPU's is read from the text, since importing the load would import torch."""
    load = Path(soak.__file__).parent / "load"
    assert 'KERNEL = "torch.flash_attention_cpu"\n' in (load / "engine_cpu.py").read_text()
    of_gpus = [name for name, member in MEMBERS.items() if member.no_load is None]
    expected = dict.fromkeys(of_gpus, "gpu") | {"torch.flash_attention_cpu": "cpu"}
    assert expected == KERNELS


def test_the_last_slot_gets_a_reading_of_its_error_counters() -> None:
    assert configured({"duration": "1h4s"}).protocol().ecc_every_ms == 4000
    assert configured({"duration": "2m", "sample_every": "8s"}).protocol().ecc_every_ms == 8000
    assert (
        configured({"duration": "2m", "sample_every": "1m", "poll_every": "30s"}).protocol().ecc_every_ms
        == 30_000
    )


def test_the_seed_is_drawn_once_and_kept_on_resumption() -> None:
    first = configured()
    again = resolve(parse({}, HOME), [MI50], drawn_seed=8)
    assert again.same_plan(first.effective())
    assert again.with_seed(7, "run r").protocol() == first.protocol()
    assert not configured({"seed": "8"}).same_plan(first.effective())
    assert configured({"seed": "7"}).same_plan(first.effective())
    assert not configured({"duration": "47h"}).same_plan(first.effective())


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "duration": st.sampled_from(["2m", "1h4s", "48h"]),
            "seq_len": st.sampled_from(["1:1", "512:4096", "77"]),
            "heads": st.integers(1, 256),
            "seed": st.integers(0, 2**63 - 1),
            "warmup": st.sampled_from(["0s", "1h"]),
            "label": st.just(["a=b", "c=d"]),
        },
    ),
    st.sampled_from([dataclasses.replace(MI50, memory_total_bytes=None), H200, CPU]),
)
def test_the_protocol_survives_storage(flags: dict[str, object], device: Device) -> None:
    config = configured(flags, device=device)
    stored = json.loads(json.dumps(config.effective()))
    assert stored == config.effective()
    assert protocol_from_config(stored) == config.protocol()


@pytest.mark.parametrize(
    "server",
    ["u@127.0.0.1:x", "u:secret@h:x", "h:", "h:-1", "h:0", "h:65536", "h1:1,h2:2", "[::1:5", "h:1/x?o=a@b:c"],
)
def test_a_database_s_port_that_is_none_is_refused(server: str) -> None:
    with pytest.raises(ConfigError, match=r"^--database: .*; write ") as caught:
        configured({"database": f"postgresql://{server}/name"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "server", ["", "h", "h:5432", "u@h:65535", "u:p:q@h", "u:p/w@h:1", "u:p@w@h", "[::1]", "u@[::1]:5432"]
)
def test_a_database_s_server_may_be_written_as_sqlalchemy_takes_it(server: str) -> None:
    url = f"postgresql://{server}/name?host=/run"
    assert configured({"database": url}).database == url
    make_url(url)


def test_effective_options_are_options_again() -> None:
    first = configured({"listen": "[::1]:80", "label": ["a=b"], "waive": ["ecc"], "seq_len": "77"})
    written = {name: value for name, value in first.effective().items() if name in OPTIONS}
    again = configured(written)
    assert again.effective() == first.effective()


def test_every_effective_value_is_shown_with_its_source_and_no_password() -> None:
    config = configured({"database": "postgresql://soak:secret@db/soak"})
    rows = {key: (value, source) for key, value, source in config.rows()}
    assert rows.keys() >= OPTIONS.keys()
    assert rows["duration"] == ("48h", "profile mi50")
    assert rows["profile"] == ("mi50", "default: auto, every card is gfx906")
    assert rows["criteria.temperature.target_c"] == ("72.0", "profile mi50")
    assert "criteria.temperature.margin_c" not in rows
    assert rows["database"] == ("postgresql://soak:***@db/soak", "flag --database")
    assert "secret" not in json.dumps(config.effective())
    assert config.database.endswith(":secret@db/soak")
