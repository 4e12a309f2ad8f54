"""Files and labels of the synthetic profiles."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tb_perfadvisor.testing.synthetic.clock import ORIGIN_UNIX_NS
from tb_perfadvisor.testing.synthetic.gpu import OVER_NVLINK, OVER_PCIE, Wire, gpu_data_parallel
from tb_perfadvisor.testing.synthetic.tpu import FITTING, PADDED, Sizes, tpu_training
from tb_perfadvisor.testing.writers import write_kineto, write_xplane
from tb_perfadvisor.trace import EventKind, Trace

_SESSION = "2026_01_01_00_00_00"
_SCRIPT = "demo_logs/record/synthetic.py"


def write_synthetic(directory: Path) -> None:
    """Write all synthetic profiles and their labels below a directory."""
    for name, files, label in _profiles():
        for path, data in files.items():
            target = directory / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(gzip.compress(data, mtime=0) if path.endswith(".gz") else data)
        text = json.dumps(label, indent=2, ensure_ascii=False)
        (directory / name / "label.json").write_text(text + "\n", encoding="utf-8")


def _profiles() -> list[tuple[str, dict[str, bytes], dict[str, Any]]]:
    tpu = "synthetic_tpu_padded"
    gpu = "synthetic_gpu_allreduce_8rank"
    return [
        _tpu(tpu, f"{tpu}_fixed", "slow", PADDED),
        _tpu(f"{tpu}_fixed", tpu, "fixed", FITTING),
        _gpu(gpu, f"{gpu}_fixed", "slow", OVER_PCIE),
        _gpu(f"{gpu}_fixed", gpu, "fixed", OVER_NVLINK),
    ]


def _tpu(
    name: str, pair: str, role: str, sizes: Sizes
) -> tuple[str, dict[str, bytes], dict[str, Any]]:
    trace = tpu_training(sizes)
    files = {f"plugins/profile/{_SESSION}/host0.xplane.pb": write_xplane(trace)}
    label = _label(
        name, pair, role, trace,
        framework="jax",
        device="TPU v5 lite",
        cause=(
            "feature sizes 520 and 2100 are no multiples of 128, so that the matrix unit works "
            "on 640 and 2176; the fixed one has 512 and 2176"
        ),
        findings=["padded-shapes"],
        absent=["input-stall", "full-precision-compute", "memory-near-capacity"],
        notes="Products take what XLA's TPU compiler (libtpu 0.0.52) estimates for their shapes.",
    )  # fmt: skip
    return name, files, label


def _gpu(
    name: str, pair: str, role: str, wire: Wire
) -> tuple[str, dict[str, bytes], dict[str, Any]]:
    traces = gpu_data_parallel(wire)
    files = {
        f"rank{rank}.{ORIGIN_UNIX_NS}.pt.trace.json.gz": write_kineto(trace)
        for rank, trace in enumerate(traces)
    }
    label = _label(
        name, pair, role, traces[0],
        framework="pytorch",
        device="8x NVIDIA H100 80GB HBM3",
        cause=(
            "400 MB of fp32 gradients per step go over PCIe at 12 GB/s, although NVLink is "
            "there; the fixed one sends bf16 at 360 GB/s"
        ),
        findings=["exposed-communication", "long-all-reduce"],
        absent=["input-stall", "full-precision-compute", "memory-near-capacity", "step-gap"],
        notes="A bucket takes 2 (n-1)/n of its bytes over the rate; backward takes 20 ms.",
    )  # fmt: skip
    return name, files, label


def _label(
    name: str,
    pair: str,
    role: str,
    trace: Trace,
    *,
    framework: str,
    device: str,
    cause: str,
    findings: list[str],
    absent: list[str],
    notes: str,
) -> dict[str, Any]:
    steps = trace.rows(EventKind.STEP)
    begin, end = trace.events.start_ns[steps[0]], trace.events.end_ns[steps[-1]]
    step_ns = round(int(end - begin) / len(steps))
    is_slow = role == "slow"
    return {
        "schema": 1,
        "id": name,
        "pair": pair,
        "role": role,
        "synthetic": True,
        "framework": framework,
        "producer": {"tb_perfadvisor": "testing.synthetic"},
        "device": device,
        "cause": cause,
        "acceptable_first_findings": findings if is_slow else [],
        "must_not_find": absent if is_slow else sorted({*absent, *findings}),
        "true_step_ns": {
            "median": step_ns,
            "repetitions": [step_ns],
            "definition": "as made up: from the first step's start to the last one's end, by step",
        },
        "profiled_step_ns": step_ns,
        "recorded_with": _SCRIPT,
        "notes": notes,
    }
