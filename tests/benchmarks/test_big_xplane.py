"""The large xplanes that readers are measured with are what they claim to be."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import big_xplane
from tb_perfadvisor.ingest.xspace.decode.messages import WRITING
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.trace import EventKind, Source, Trace

DEMO_LOGS = Path(__file__).parents[2] / "demo_logs"
(RECORDED,) = DEMO_LOGS.glob("tensorflow_input_slow/**/*.xplane.pb")


def read(data: bytes) -> Trace:
    return read_xplane(io.BytesIO(data), Source(path="", format=""))


@pytest.mark.parametrize(
    "profile", ["gpu", pytest.param("tpu", marks=pytest.mark.nightly), RECORDED]
)
def test_a_repeated_profile_has_so_many_times_everything(
    profile: str | Path, tmp_path: Path
) -> None:
    small, big = tmp_path / "small.xplane.pb", tmp_path / "runs" / "big.xplane.pb"
    assert big_xplane.write(small, 1, profile) == 1
    # Names and texts are not repeated, so three copies are less than three times as big.
    copies = big_xplane.write(big, small.stat().st_size * 3 // 2, profile)
    assert copies > 1
    assert big.stat().st_size >= small.stat().st_size * 3 // 2
    original, multiplied = read(small.read_bytes()), read(big.read_bytes())
    assert (original.notes, multiplied.notes) == ((), ())
    assert counts(multiplied) == [copies * count for count in counts(original)]
    assert len(multiplied.hlo.name) == len(original.hlo.name)
    # A launch serves the device events of its own copy alone.
    device = np.flatnonzero(multiplied.events.launched_by >= 0)
    lag_ns = (
        multiplied.events.start_ns[device]
        - multiplied.events.start_ns[multiplied.events.launched_by[device]]
    )
    assert (abs(lag_ns) < original.duration_ns).all()


def counts(trace: Trace) -> list[int]:
    steps = trace.events.step[trace.rows(EventKind.STEP)]
    return [
        len(trace.events),
        len(np.unique(steps)),
        int((trace.events.launched_by >= 0).sum()),
        len(trace.kernels.row),
        len(trace.memory.at_ns),
        int(trace.events.duration_ns.sum()),
    ]


def test_one_copy_of_a_recording_is_the_recording(tmp_path: Path) -> None:
    target = tmp_path / "copy.xplane.pb"
    big_xplane.write(target, 1, RECORDED)
    copy = WRITING.XSpace.FromString(target.read_bytes())
    assert copy == WRITING.XSpace.FromString(RECORDED.read_bytes())
