"""Recordings whose truth was read from their raw events: clocks, set-up, and too little data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze

pytestmark = pytest.mark.corpus


@pytest.mark.parametrize(
    ("name", "shift_ms", "step_ms"),
    [("NERSC_4gpu_baseline_567f", 324.72, 50.9), ("NERSC_4gpu_nobroadcast_de4a", -156.29, 50.0)],
)
def test_a_shifted_clock(corpus: Path, name: str, shift_ms: float, step_ms: float) -> None:
    # By the smallest lag from a launch to its kernel, equal in every tenth of the file.
    report = analyze(corpus / "nsys-public" / name)
    assert report.trust.level == "limited"
    (note,) = (note for note in report.notes if note.id == "device-clock-shift")
    assert f"{abs(round(shift_ms))} ms {'ahead of' if shift_ms > 0 else 'behind'}" in note.message
    assert report.overview.step_time_ns == pytest.approx(step_ms * 1e6, rel=0.03)
    assert report.overview.device_busy_share == pytest.approx(0.97, abs=0.01)
    assert (report.overview.exposed_communication_share or 0) <= 0.02


def test_a_model_that_is_loaded_is_no_batch(corpus: Path) -> None:
    report = analyze(corpus / "nsys-public" / "zx3xyy_result_2_7B_509f")
    # 294 copies come before the first kernel. Then a forward pass takes 843 ms.
    (note,) = (note for note in report.notes if note.id == "partly-covered")
    assert note.message.endswith("before them are start-up, and are not analyzed.")
    assert report.overview.step_time_ns == pytest.approx(843e6, rel=0.01)
    assert not {"exposed-copies", "pageable-copies"} & {each.rule_id for each in report.findings}
    assert report.overview.exposed_copy_share == 0


@pytest.mark.parametrize(
    "path",
    [
        "nsys-public/argonne-lcf_lineprofiling_seq_parallel_fp3_c0b4",
        "nsys-public/wenscarl_report1_f13c",
        "hta/call_stack",
        "hta/triton_example",
        "intel-xpu/fixture_basic",
    ],
)
def test_too_little_data_gets_no_ranking(corpus: Path, path: str) -> None:
    report = analyze(corpus / path)
    assert report.trust.level == "do not act"
    assert (report.findings, report.first) == ([], None)


def test_a_rare_event_that_outlasts_its_stream(corpus: Path) -> None:
    # One kernel of 17 us, of which 11 overlap the two after it.
    report = analyze(corpus / "hta" / "trace_diff_test")
    (note,) = (note for note in report.notes if note.id == "impossible-durations")
    assert "17.0 µs and takes 6.00 µs" in note.message
    assert report.trust.level == "solid"
