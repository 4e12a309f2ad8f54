"""The made-up profiles are what their script writes, and say what was built into them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from zipfile import ZipFile

import pytest

import tb_perfadvisor
from demo_logs.record.compiled.profile import step_ps
from demo_logs.record.synthetic import scalar_files, synthetic_files
from demo_logs.record.synthetic_gpu import OVER_NVLINK, OVER_PCIE, gpu_data_parallel
from demo_logs.record.synthetic_tpu import FITTING, PADDED, tpu_attention
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.rules.communication.overlap import ExposedCommunication
from tb_perfadvisor.rules.communication.transfers import LongAllReduce
from tb_perfadvisor.rules.xla.utilization import PaddedShapes
from tb_perfadvisor.testing import find, run_of
from tb_perfadvisor.trace import EventKind, Source

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"
MAX_FILE_BYTES = 100_000
NAMES = (
    "synthetic_gpu_allreduce_8rank",
    "synthetic_gpu_allreduce_8rank_fixed",
    "synthetic_tpu_padded",
    "synthetic_tpu_padded_fixed",
)
SOURCE = Source(path="x", format="")


def unpacked(files: dict[str, bytes]) -> dict[str, bytes]:
    """How well zlib packs depends on its version."""
    return {
        name: gzip.decompress(data) if name.endswith(".gz") else data
        for name, data in files.items()
    }


def test_the_committed_files_are_what_the_script_writes() -> None:
    committed = {
        path.relative_to(DEMO_LOGS).as_posix(): path.read_bytes()
        for path in DEMO_LOGS.glob("synthetic_*/**/*")
        if path.is_file()
    }
    assert {name.partition("/")[0] for name in committed} == set(NAMES)
    assert unpacked(committed) == unpacked(synthetic_files())


def test_the_archive_of_the_demo_holds_the_profiles_and_the_logged_scalars() -> None:
    with ZipFile(Path(tb_perfadvisor.__file__).parent / "cli" / "demo.zip") as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    assert unpacked(held) == unpacked(synthetic_files() | scalar_files())


@pytest.mark.parametrize("name", NAMES)
def test_files_are_small_and_say_that_they_are_made_up(name: str) -> None:
    label = json.loads((DEMO_LOGS / name / "label.json").read_text(encoding="utf-8"))
    assert (label["id"], label["synthetic"]) == (name, True)
    assert label["recorded_with"] == "demo_logs/record/synthetic.py"
    profiles = [path for path in (DEMO_LOGS / name).rglob("*.*") if path.suffix in (".gz", ".pb")]
    assert len(profiles) == (8 if "gpu" in name else 1)
    for path in profiles:
        assert path.stat().st_size < MAX_FILE_BYTES
        with path.open("rb") as stream:
            is_kineto = path.suffix == ".gz"
            trace = next(read_kineto(stream, SOURCE)) if is_kineto else read_xplane(stream, SOURCE)
        assert trace.source.is_synthetic
        assert [note.id for note in trace.notes] == ["estimated-durations"] * ("tpu" in name)


def test_the_tpu_pair_differs_by_a_quarter() -> None:
    slow_ps, fixed_ps = step_ps(tpu_attention(PADDED)), step_ps(tpu_attention(FITTING))
    # What XLA's compiler says of attention over 513 and 512 positions on a TPU v6e.
    assert 1 - fixed_ps / slow_ps == pytest.approx(0.25, abs=0.01)


def test_padded_shapes_finds_the_sequence_and_brackets_what_the_fix_saves() -> None:
    path = next((DEMO_LOGS / "synthetic_tpu_padded").rglob("*.xplane.pb"))
    with path.open("rb") as stream:
        trace = read_xplane(stream, SOURCE)
    (finding,) = find(PaddedShapes, run_of(trace)) or ()
    saved_ns = (step_ps(tpu_attention(PADDED)) - step_ps(tpu_attention(FITTING))) // 1000
    assert finding.saving is not None
    steps = len(trace.rows(EventKind.DEVICE_STEP))
    assert finding.saving.low_ns <= steps * saved_ns <= finding.saving.high_ns
    assert "513" in str(finding)


def test_long_all_reduce_knows_what_400_megabytes_should_take() -> None:
    slow = run_of(*gpu_data_parallel(OVER_PCIE))
    fixed = run_of(*gpu_data_parallel(OVER_NVLINK))
    (finding,) = find(LongAllReduce, slow) or ()
    # 16 buckets of 25 MB: 2 x 7/8 x 25e6 / 12e9 = 3.646 ms each and 0.02 ms of latency: 58.7 ms.
    # At 450 GB/s 2 x 7/8 x 400e6 / 450e9 = 1.556 ms, and 16 rings of 14 hops of 3.4 us: 0.762 ms.
    assert "58.7 ms" in finding.summary
    assert "2.32 ms" in finding.summary
    assert find(LongAllReduce, fixed) == ()
    assert find(ExposedCommunication, fixed) == ()
    assert find(ExposedCommunication, slow)


def test_all_ranks_leave_a_collective_together() -> None:
    ends = {
        tuple(trace.events.end_ns[trace.rows(EventKind.COLLECTIVE)].tolist())
        for trace in gpu_data_parallel(OVER_PCIE)
    }
    assert len(ends) == 1
    assert len(ends.pop()) == 4 * 16
