"""Files and labels of the synthetic profiles."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tb_perfadvisor.testing.clock import ORIGIN_UNIX_NS
from tb_perfadvisor.testing.compiled import write_compiled
from tb_perfadvisor.testing.compiled.profile import step_ps
from tb_perfadvisor.testing.synthetic.gpu import OVER_NVLINK, OVER_PCIE, Wire, gpu_data_parallel
from tb_perfadvisor.testing.synthetic.tpu import FITTING, PADDED, tpu_attention
from tb_perfadvisor.testing.writers import write_kineto
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
    name: str, pair: str, role: str, length: int
) -> tuple[str, dict[str, bytes], dict[str, Any]]:
    schedule = tpu_attention(length)
    files = {f"plugins/profile/{_SESSION}/host0.xplane.pb": write_compiled(schedule)}
    label = _label(
        name, pair, role, round(step_ps(schedule) / 1000),
        framework="jax",
        device=schedule.device,
        cause=(
            "attention over 513 positions, for which XLA chooses slower kernels than for the 512 "
            "of the fixed one"
        ),
        findings=["padded-shapes"],
        absent=["input-stall", "full-precision-compute", "memory-near-capacity"],
        definition="as estimated: the program's operations one after the other",
        notes=f"Compiled, not recorded: durations are estimates of {schedule.compiler}.",
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
        name, pair, role, _step_ns(traces[0]),
        framework="pytorch",
        device="8x NVIDIA H100 80GB HBM3",
        cause=(
            "400 MB of fp32 gradients per step go over PCIe at 12 GB/s, although NVLink is "
            "there; the fixed one sends bf16 at 360 GB/s"
        ),
        findings=["exposed-communication", "long-all-reduce"],
        absent=["input-stall", "full-precision-compute", "memory-near-capacity", "step-gap"],
        definition="as made up: from the first step's start to the last one's end, by step",
        notes="A bucket takes 2 (n-1)/n of its bytes over the rate; backward takes 20 ms.",
    )  # fmt: skip
    return name, files, label


def _step_ns(trace: Trace) -> int:
    steps = trace.rows(EventKind.STEP)
    begin, end = trace.events.start_ns[steps[0]], trace.events.end_ns[steps[-1]]
    return round(int(end - begin) / len(steps))


def _label(
    name: str,
    pair: str,
    role: str,
    step_ns: int,
    *,
    framework: str,
    device: str,
    cause: str,
    findings: list[str],
    absent: list[str],
    definition: str,
    notes: str,
) -> dict[str, Any]:
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
            "definition": definition,
        },
        "profiled_step_ns": step_ns,
        "recorded_with": _SCRIPT,
        "notes": notes,
    }
