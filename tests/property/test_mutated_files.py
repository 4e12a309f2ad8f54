"""Any change to the bytes of a real profile gives a report or an error for the user.

This covers the signals, rules and reports too, which get the impossible times, counts and links of
a damaged file.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tb_perfadvisor.api import analyze
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.ingest.xplane.reader import read_xplane
from tb_perfadvisor.report import document
from tb_perfadvisor.report.formats.render import render
from tb_perfadvisor.trace import Run, Source, Trace
from tests.support.corpus_traces import CORPUS

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"

Reader = Callable[[BinaryIO, Source], Trace]

KINETO = [
    DEMO_LOGS / "pytorch_ddp_balanced/worker0.1795234145012220703.pt.trace.json.gz",
    DEMO_LOGS / "synthetic_gpu_allreduce_8rank/rank0.1767225600000000000.pt.trace.json.gz",
    CORPUS / "hta/amd_trace/5ac56597/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    CORPUS / "tracelens/eval_moe_nv/moe_01_many_experts_few_tokens/rank0.pt.trace.json.gz",
    CORPUS / "kineto/test_gpu_metrics/71530b1d/gpu_metrics.pt.trace.json",
    CORPUS / "hta/critical_path_cuda_event_sync/a4a6c2d1/event_sync_trace.json.gz",
]
XPLANE = [
    DEMO_LOGS / "synthetic_tpu_padded/plugins/profile/2026_01_01_00_00_00/host0.xplane.pb",
    *sorted(CORPUS.glob("local-tf-cpu/custom_loop_trace_steps/plugins/profile/*/*.xplane.pb")),
    *sorted(CORPUS.glob("tracelens-jax/test_data*/plugins/profile/*/*.xplane.pb")),
]
# Bytes that break readers: delimiters, and numbers at the limits of their types.
TOKENS = {
    "kineto": [
        *(b'"', b"}", b"]", b"{", b"[", b",", b":", b"\\", b"null", b"true", b'""', b"{}"),
        *(b"-1", b"0", b"1e9", b"1e308", b"9223372036854775807", b"-9223372036854775808"),
        *(b"18446744073709551616", b"NaN", b'"ph":"X"', b'"ts":', b'"dur":', b'"args":'),
        *(b'"correlation":', b'"External id":', b'"device":', b'"stream":', b'"pid":', b'"tid":'),
    ],
    "xplane": [
        *(b"\x00", b"\x80", b"\xff", b"\x7f", b"\xff" * 9 + b"\x01", b"\x80" * 12),
        *(b"\x0a\x00", b"\x12\x00", b"\x1a\x00", b"\x22\x00", b"\x0b", b"\x0c", b"\x08\x00"),
        *(b"\x10" + b"\xff" * 8 + b"\x7f", b"\x18" + b"\xff" * 8 + b"\x7f", b"\x2a\xff\xff\x03"),
    ],
}

Change = tuple[float, int | None, bytes]


def changes(tokens: list[bytes]) -> st.SearchStrategy[list[Change]]:
    """Changes: place (share of the file), bytes to replace (None: equally many), new bytes."""
    new = st.one_of(st.sampled_from(tokens), st.binary(max_size=8), st.just(b""))
    # Half of them in place, because an XSpace with inconsistent lengths is not read at all.
    lengths = st.one_of(st.none(), st.none(), st.integers(0, 40))
    place = st.floats(0, 1, exclude_max=True)
    return st.lists(st.tuples(place, lengths, new), min_size=1, max_size=6)


@lru_cache
def content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def mutated(data: bytes, edits: list[Change], end: float | None) -> bytes:
    result = bytearray(data)
    for place, length, new in edits:
        at = int(place * len(result))
        result[at : at + (len(new) if length is None else length)] = new
    return bytes(result if end is None else result[: int(end * len(result))])


def report_or_error(read: Reader, data: bytes) -> None:
    try:
        trace = read(io.BytesIO(data), Source(path="run/file", format=""))
        run = Run(id="0", name="run", session="s", traces=(trace,))
        report = analyze(run, Config(with_views=True))
    except PerfAdvisorError:
        return
    assert not [outcome for outcome in report.outcomes if outcome.status == "failed"]
    breakdown = report.overview.breakdown
    assert sum(part.total_ns for part in breakdown) == report.overview.window_ns
    for format in ("json", "text", "markdown"):
        render(document([report]), format)
    msgspec.json.decode(msgspec.json.encode(report))


def present(paths: list[Path]) -> list[Path]:
    return [path for path in paths if path.exists()]


ENDS = st.one_of(st.none(), st.floats(0, 1))


@pytest.mark.parametrize("path", present(KINETO), ids=lambda path: path.parent.name)
@settings(max_examples=50)
@given(edits=changes(TOKENS["kineto"]), end=ENDS)
def test_kineto(path: Path, edits: list[Change], end: float | None) -> None:
    report_or_error(read_kineto, mutated(content(path), edits, end))


@pytest.mark.parametrize("path", present(KINETO[:2]), ids=lambda path: path.parent.name)
@settings(max_examples=30)
@given(edits=changes(TOKENS["xplane"]), end=ENDS)
def test_gzipped_kineto(path: Path, edits: list[Change], end: float | None) -> None:
    report_or_error(read_kineto, mutated(path.read_bytes(), edits, end))


@pytest.mark.parametrize("path", present(XPLANE), ids=lambda path: path.parents[3].name)
@settings(max_examples=120)
@given(edits=changes(TOKENS["xplane"]), end=ENDS)
def test_xplane(path: Path, edits: list[Change], end: float | None) -> None:
    report_or_error(read_xplane, mutated(content(path), edits, end))
