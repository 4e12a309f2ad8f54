"""Lists that torch.autograd's profiler writes without categories, and text in UTF-16."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.trace import EventKind
from tests.support.kineto_files import read

CALL = {"ph": "X", "tid": 1, "pid": "CPU functions", "args": {}}
KERNEL = {"ph": "X", "tid": 0, "pid": "CUDA functions", "args": {}}


def listed(calls: int, kernels: int = 0) -> bytes:
    """A list as `EventList.export_chrome_trace` writes it, in PyTorch 1.4 with kernels."""
    events = [
        *({"name": "aten::mul", "ts": 600 + 10 * k, "dur": 5, **CALL} for k in range(calls)),
        *({"name": "mul_kernel", "ts": 603 + 10 * k, "dur": 4, **KERNEL} for k in range(kernels)),
        {"name": "mul_kernel", "ph": "s", "ts": 600, "tid": 1, "pid": "CPU functions", "id": 0}
        | {"cat": "cpu_to_cuda", "args": {}},
    ]
    return json.dumps(events).encode()


def test_operators_and_kernels_without_categories() -> None:
    trace = read(listed(100, 100))
    operators, kernels = trace.rows(EventKind.OPERATOR), trace.rows(EventKind.KERNEL)
    assert (len(operators), int(trace.events.duration_ns[operators].sum())) == (100, 500_000)
    assert (len(kernels), int(trace.events.duration_ns[kernels].sum())) == (100, 400_000)
    assert trace.source.framework == "pytorch"


def test_they_are_found(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(listed(100))
    assert [capture.format for capture in discover(tmp_path).captures] == ["kineto"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_other_encodings_are_refused_by_name(encoding: str) -> None:
    with pytest.raises(PerfAdvisorError, match=r"text in UTF-16"):
        read(listed(3).decode().encode(encoding))
