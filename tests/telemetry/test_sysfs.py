"""Small files with everything that can be wrong with them."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soak.core.records import Quantity, Reading, ReadingStatus
from soak.telemetry import sysfs


@pytest.mark.parametrize("text", ["97", "97\n", " 97 \n", "97\n" + "\0" * 4093, "+97", "097"])
def test_a_number_in_its_wrappings(tmp_path, text):
    (tmp_path / "busy").write_text(text)
    assert sysfs.read_quantity(tmp_path / "busy", Quantity.UTILISATION_PCT) == Reading.ok(97.0)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\n", b"\0" * 4096, b"\xff\xfe", b"9" * (1 << 20)),
        *(b"N/A", b"[N/A]", b"[Not Supported]", b"Query currently inaccessible\n"),
        *(b"97 %", b"97 W", b"0x61", b"9 7", b"9\n7", b"97.5", b"1_0", "٩٧".encode(), b"-1", b"1980"),
    ],
)
def test_anything_else_is_unreadable_with_its_words(tmp_path, data):
    (tmp_path / "busy").write_bytes(data)
    reading = sysfs.read_quantity(tmp_path / "busy", Quantity.UTILISATION_PCT)
    assert reading.status is ReadingStatus.UNREADABLE
    assert 0 < len(reading.reason) < 200


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.binary(max_size=5000))
def test_no_bytes_escape_as_an_exception_or_become_an_impossible_value(tmp_path, data):
    (tmp_path / "file").write_bytes(data)
    reading = sysfs.read_quantity(tmp_path / "file", Quantity.UTILISATION_PCT)
    assert reading.status is ReadingStatus.UNREADABLE or 0 <= (reading.value or 0) <= 100
    if reading.value == 0:
        assert data.strip(b"\0 \t\r\n").strip(b"+-0") == b""
    sysfs.read_count(tmp_path / "file")


@pytest.mark.parametrize(
    "text",
    [
        *("N/A", "[N/A]", "n/a", "NA", "N.A.", "[Not Supported]", "Not Available", "[Unknown Error]", "None"),
        *("[Requested functionality has been deprecated]", "[Insufficient Permissions]", "null", " [ N/A ] "),
        "Query currently inaccessible",
    ],
)
def test_words_for_nothing_are_no_name(tmp_path, text):
    (tmp_path / "product_name").write_text(f"{text}\n")
    assert sysfs.name_in(tmp_path / "product_name") is None
    assert sysfs.says_nothing(text)


@pytest.mark.parametrize("text", ["NVIDIA H200", "113-D1631700-111", "Navi", "Nonesuch 5", "Not a card"])
def test_names_are_names(tmp_path, text):
    (tmp_path / "product_name").write_text(f"{text}\n")
    assert sysfs.name_in(tmp_path / "product_name") == text


def test_a_missing_file_is_unsupported(tmp_path):
    reading = sysfs.read_quantity(tmp_path / "gpu_busy_percent", Quantity.UTILISATION_PCT)
    assert reading == Reading.unsupported("no gpu_busy_percent (ENOENT)")
    (tmp_path / "plain").write_text("")
    assert sysfs.read_count(tmp_path / "plain" / "below").status is ReadingStatus.UNSUPPORTED


class Answers:
    """Stands for a file whose read answers with these errors or bytes, in turn; the last one for ever."""

    def __init__(self, *answers: int | bytes) -> None:
        self.answers = list(answers)
        self.n_reads = 0

    def __call__(self, *_: object) -> bytes:
        self.n_reads += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer


@pytest.mark.parametrize(
    ("answers", "expected", "n_reads"),
    [
        ((errno.EBUSY, b"98\n"), Reading.ok(98.0), 2),  # A05 (i): a quick re-read
        ((errno.EPERM,), Reading.unreadable("gpu_busy_percent: EPERM: reset or suspend suspected"), 2),
        ((errno.EBUSY,), Reading.unreadable("gpu_busy_percent: EBUSY: reset or suspend suspected"), 2),
        ((errno.EINVAL,), Reading.unreadable("gpu_busy_percent: EINVAL"), 1),  # A05 (iii)
        ((errno.EACCES,), Reading.unreadable("gpu_busy_percent: EACCES"), 1),
        ((errno.EIO,), Reading.unreadable("gpu_busy_percent: EIO"), 1),
        ((errno.EOPNOTSUPP,), Reading.unsupported("no gpu_busy_percent (ENOTSUP)"), 1),
    ],
)
def test_a_file_that_exists_and_cannot_be_read(tmp_path, monkeypatch, answers, expected, n_reads):
    reads = Answers(*answers)
    monkeypatch.setattr(sysfs, "read_bytes", reads)
    assert sysfs.read_quantity(tmp_path / "gpu_busy_percent", Quantity.UTILISATION_PCT) == expected
    assert reads.n_reads == n_reads
