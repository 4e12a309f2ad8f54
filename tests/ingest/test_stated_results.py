"""Results of TensorFlow's tools beside the events of the same recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.trace import Run, StatedResults
from tests.support.chrome_files import HOST, span, to_bytes
from tests.support.tool_results import generic_step, input_pipeline, kernel_stats, overview

EXPORT = to_bytes([*HOST, span("train", 0, 10)])
# 12 and 8 ms, of which 6 and 3 are input: 9 of 20.
PIPELINE = input_pipeline(
    generic_step(0, step=12.0, wait_input=6.0, compute=6.0),
    generic_step(1, step=8.0, wait_input=3.0, compute=5.0),
)


def loaded(folder: Path, **results: bytes) -> Run:
    session = folder / "plugins/profile/s"
    session.mkdir(parents=True)
    (session / "h.trace.json").write_bytes(EXPORT)
    for name, data in results.items():
        (session / f"h.{name}.pb").write_bytes(data)
    listing = discover(folder)
    (capture,) = listing.captures
    return load_capture(listing, capture)


def test_results_beside_events_are_read(tmp_path: Path) -> None:
    page = overview(PIPELINE, percent={9: 12.5, 10: 87.5})
    run = loaded(tmp_path, overview_page=page, input_pipeline=PIPELINE, kernel_stats=b"")
    assert run.stated == (StatedResults("h.input_pipeline.pb", "h", 2, 10e6, 9 / 20, 0.125),)
    assert run.notes == ()


def test_results_without_steps_are_named(tmp_path: Path) -> None:
    run = loaded(tmp_path, kernel_stats=kernel_stats(("gemm", 1000, 1)))
    assert run.stated == ()
    (note,) = run.notes
    assert (note.id, note.severity) == ("other-results", "info")
    assert "results of TensorFlow's tools (kernel_stats)" in note.message


@pytest.mark.parametrize("data", [b"", b"x", input_pipeline(hardware="GPU")])
def test_results_that_cannot_be_read_are_named(tmp_path: Path, data: bytes) -> None:
    run = loaded(tmp_path, overview_page=data)
    assert run.stated == ()
    (note,) = run.notes
    assert note.id == "other-results"
    assert "were not read (h.overview_page.pb)" in note.message


def test_an_input_pipeline_that_may_exist_has_no_share(tmp_path: Path) -> None:
    (stated,) = loaded(
        tmp_path, input_pipeline=input_pipeline(generic_step(0, step=5.0, compute=5.0))
    ).stated
    assert (stated.input_share, stated.share_of_16_bits) == (None, None)
