"""Every parser against anything: the kept corpus and some new inputs each time; minutes in `make long`.

An input that breaks a promise is written into `corpus/TARGET/`, to be kept with the fix.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
ATHERIS_S = int(os.environ.get("SOAK_FUZZ_SECONDS", "45"))  # a target; eight of them

CONTENT = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([
        b"", b"\n", b"\0" * 4096, b"N/A", b"[N/A]", b"[Not Supported]", b"-1", b"9" * 4096, b"0", b"65535",
        b"1e9", b"42 W", b"0x10", b"ue: -1\nce: 99\n", b"Query currently inaccessible\n", b"4294967295",
        b"x" * (1 << 20),
    ]),
    st.integers(-(2**70), 2**70).map(lambda number: str(number).encode()),
    st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass")),
)  # fmt: skip
INPUT = st.builds(lambda head, content: head + content, st.binary(min_size=2, max_size=2), CONTENT)


def seeds(target: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*"))]


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_that_was_kept(target: str) -> None:
    kept = seeds(target)
    assert kept, f"corpus/{target} is empty"
    for data in kept:
        TARGETS[target](data)


def fuzzed(target: str, n_examples: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]

    @settings(max_examples=n_examples, suppress_health_check=checks)
    @given(st.one_of(INPUT, CONTENT))
    def holds(data: bytes) -> None:
        TARGETS[target](data)

    holds()


@pytest.mark.parametrize("target", TARGETS)
def test_some_inputs(target: str) -> None:
    fuzzed(target, 60)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", TARGETS)
def test_many_inputs(target: str) -> None:
    fuzzed(target, 2_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", TARGETS)
def test_inputs_guided_by_coverage(target: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed (pip install atheris)")
    found, broken = tmp_path / "found", tmp_path / "broken"
    found.mkdir()
    broken.mkdir()
    command = [
        sys.executable, "-m", "tests.fuzz.run_atheris", target, str(found), str(CORPUS / target),
        f"-max_total_time={ATHERIS_S}", f"-artifact_prefix={broken}/", "-max_len=4096", "-timeout=20",
        "-rss_limit_mb=1024",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for path in broken.iterdir():
        shutil.copy(path, CORPUS / target / f"{path.name}.input")
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "Done " in done.stderr, done.stderr[-2000:]
