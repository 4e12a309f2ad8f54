"""Writes the synthetic demo profiles: `python -m demo_logs.record.synthetic [--output DIR]`.

Profiles of machines that we don't have, a TPU and eight GPUs, each slow and fixed. The GPUs' times
follow from sizes and from the rates in data sheets, so the right advice can be worked out by hand.
The TPU's are those that XLA's compiler estimates for a program that it compiled. Unlike the other
scripts, this one records nothing: its output is the same every time. It also writes the archive
that `perfadvisor demo` unpacks, with what the runs of the GPU programs logged.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from demo_logs.record.compiled import write_compiled
from demo_logs.record.compiled.profile import step_ps
from demo_logs.record.synthetic_clock import ORIGIN_UNIX_NS
from demo_logs.record.synthetic_gpu import OVER_NVLINK, OVER_PCIE, Wire, gpu_data_parallel
from demo_logs.record.synthetic_scalars import event_file, training_scalars
from demo_logs.record.synthetic_tpu import FITTING, PADDED, tpu_attention
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.writers import write_kineto

DEMO_LOGS = Path(__file__).resolve().parent.parent
ARCHIVE = DEMO_LOGS.parent / "tb_perfadvisor" / "cli" / "demo.zip"
_SESSION = "2026_01_01_00_00_00"
_SCRIPT = "demo_logs/record/synthetic.py"


def main() -> None:
    """Writes the profiles, their labels and the archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DEMO_LOGS)
    write_synthetic(parser.parse_args().output)
    write_archive(ARCHIVE)


def write_synthetic(directory: Path) -> None:
    """Write all synthetic profiles and their labels below a directory."""
    for name, data in synthetic_files().items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def synthetic_files() -> dict[str, bytes]:
    """The files of all profiles, with their labels."""
    written = {}
    for name, files, label in _profiles():
        for path, data in files.items():
            packed = gzip.compress(data, mtime=0) if path.endswith(".gz") else data
            written[f"{name}/{path}"] = packed
        text = json.dumps(label, indent=2, ensure_ascii=False)
        written[f"{name}/label.json"] = f"{text}\n".encode()
    return written


def scalar_files() -> dict[str, bytes]:
    """What the runs of the GPU programs logged, for the page Training."""
    written = {}
    for name, _, label in _profiles():
        if "_gpu_" in name:
            points = list(training_scalars(label["true_step_ns"]["median"]))
            path = f"{name}/events.out.tfevents.{points[0][1]:.0f}.demo.1.0"
            written[path] = event_file(points)
    return written


def write_archive(path: Path) -> None:
    """Write what `perfadvisor demo` unpacks; the same bytes every time."""
    with ZipFile(path, "w", ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in (synthetic_files() | scalar_files()).items():
            archive.writestr(ZipInfo(name), data, ZIP_DEFLATED)


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
        "producer": {"tb_perfadvisor": "synthetic"},
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


if __name__ == "__main__":
    main()
