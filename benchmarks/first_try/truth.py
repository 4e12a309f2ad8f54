"""Measures a profile from its raw events, independently of the advisor.

An expert reads these measures, and the events behind them, and writes down what limits the program.
Nothing here imports the advisor: a mistake of its readers must not hide in the truth.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Measures = dict[str, Any]
Intervals = np.ndarray[Any, np.dtype[np.float64]]

_HOST = {"cpu_op", "operator", "user_annotation", "python_function", "cuda_runtime", "cuda_driver"}
_RUNTIME = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime"}
_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
_COMMUNICATION = re.compile(
    r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|internode|nvshmem", re.I
)
_KINDS = (
    ("attention", re.compile(r"flash|fmha|attention|attn|paged_kv|mla_", re.I)),
    (
        "convolution",
        re.compile(r"conv|winograd|scudnn|hcudnn|implicit|fprop|dgrad|wgrad", re.I),
    ),
    (
        "matrix product",
        re.compile(
            r"gemm|gemv|cutlass|cublas|cijk|nvjet|xmma|s\d{4,5}|dot_kernel|matmul|_mm_", re.I
        ),
    ),
    ("optimizer", re.compile(r"multi_tensor_apply|adam|fused_optimizer", re.I)),
    ("normalization", re.compile(r"norm|bn_fw|bn_bw|batchnorm", re.I)),
    ("softmax", re.compile(r"softmax", re.I)),
    ("compiled pointwise", re.compile(r"^triton_(poi|red|per)", re.I)),
    (
        "pointwise, copy, reduction",
        re.compile(
            r"elementwise|reduce|copy|fill|index|cat|scatter|gather|pool|dropout|where|cast"
            r"|transpose|pointwise|embedding|sort|topk|philox|distribution|relu|gelu|silu|rope",
            re.I,
        ),
    ),
)
_SIXTEEN_BIT = re.compile(
    r"bf16|fp16|f16|half|hgemm|s16816|h16816|h884|h1688|bfloat|e4m3|fp8|i8", re.I
)
_WAITS = re.compile(r"synchronize|eventquery|memcpy$|memcpy\(|hipMemcpyWithStream", re.I)


def measure(folder: Path) -> list[Measures]:
    """What the events of each file below a folder say, one result per file."""
    results = []
    for path in sorted(folder.rglob("*.json*")):
        document = json.loads(_text(path), strict=False)
        events = document if isinstance(document, list) else document.get("traceEvents", [])
        results.append({"file": path.name, **_kineto(events, document)})
    return results + [
        {"file": path.name, **_xplane(path.read_bytes())}
        for path in sorted(folder.rglob("*.xplane.pb"))
    ]


def duration_ms(folder: Path, measured: str) -> float:
    """One of the times of `measure`, the slowest process's."""
    return max(float(row[measured]) for row in measure(folder))


def _text(path: Path) -> str:
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    return content.decode("utf-8", "replace")


def _kineto(events: Sequence[dict[str, Any]], document: Any) -> Measures:
    rows = [
        event
        for event in events
        if isinstance(event, dict) and event.get("ph") == "X" and "ts" in event and "dur" in event
    ]
    for row in rows:
        row["cat"] = str(row.get("cat", "")).lower()
        row["ts"], row["dur"] = float(row["ts"]), float(row["dur"])
    device = [row for row in rows if row["cat"] in _DEVICE]
    host = [row for row in rows if row["cat"] in _HOST | _RUNTIME and not _is_step(row)]
    steps = _steps(rows)
    found: Measures = {
        "devices": sorted(_device_names(document)),
        "events": len(rows),
        "device_events": len(device),
        "host_ms": _span(host),
        "steps": len(steps),
        "step_ms": float(np.mean([end - start for start, end in steps]) / 1e3) if steps else None,
    }
    found |= _host_measures(rows, host)
    if device:
        found |= _device_measures(device, rows, steps)
    return found


def _device_names(document: Any) -> Iterable[str]:
    properties = document.get("deviceProperties", []) if isinstance(document, dict) else []
    return {str(one.get("name", "")) for one in properties}


def _is_step(row: dict[str, Any]) -> bool:
    return str(row["name"]).startswith("ProfilerStep")


def _steps(rows: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    marks = [row for row in rows if _is_step(row) and "gpu" not in row["cat"]]
    return sorted((row["ts"], row["ts"] + row["dur"]) for row in marks)


def _span(rows: Sequence[dict[str, Any]]) -> float:
    if not rows:
        return 0.0
    start = min(row["ts"] for row in rows)
    end = max(row["ts"] + row["dur"] for row in rows)
    return float(end - start) / 1e3


def _host_measures(rows: Sequence[dict[str, Any]], host: Sequence[dict[str, Any]]) -> Measures:
    runtime = _totals(row for row in host if row["cat"] in _RUNTIME)
    operators = [row for row in host if row["cat"] in {"cpu_op", "operator"}]
    loader = [
        row for row in rows if "DataLoader" in str(row["name"]) and "next" in str(row["name"])
    ]
    return {
        "runtime_calls": _largest(runtime),
        "waits_ms": sum(ms for name, (ms, _) in runtime.items() if _WAITS.search(name)),
        "waiting_operators": _waiting_operators(host),
        "launches": sum(n for name, (_, n) in runtime.items() if "launch" in name.lower()),
        "graph_launches": sum(n for name, (_, n) in runtime.items() if "GraphLaunch" in name),
        "allocations": {
            name: (round(ms, 2), n)
            for name, (ms, n) in runtime.items()
            if re.search(r"(cuda|hip)(Malloc|Free|HostAlloc)", name)
        },
        "operators_self": _largest(_self_times(operators)),
        "annotations": _largest(
            _totals(row for row in rows if row["cat"] == "user_annotation" and not _is_step(row))
        ),
        "python_self": _largest(
            _self_times([row for row in rows if row["cat"] == "python_function"]), 8
        ),
        "loader_ms": _union_of(loader) / 1e3,
        "loader_calls": len(loader),
        "compile": _largest(
            _totals(
                row
                for row in rows
                if re.search(
                    r"compile|dynamo|inductor|autotune|ModuleLoad|LibraryLoad",
                    str(row["name"]),
                    re.I,
                )
                and row["cat"] != "kernel"
            ),
            4,
        ),
    }


def _device_measures(
    device: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
    steps: Sequence[tuple[float, float]],
) -> Measures:
    kernels = [row for row in device if row["cat"] == "kernel"]
    communication = [row for row in kernels if _COMMUNICATION.search(str(row["name"]))]
    compute = [row for row in device if not _COMMUNICATION.search(str(row["name"]))]
    start = min(row["ts"] for row in device)
    end = max(row["ts"] + row["dur"] for row in device)
    busy = _union(device)
    inside = _clipped(busy, steps)
    kernel_us = sum(row["dur"] for row in kernels) or 1.0
    kinds: dict[str, float] = defaultdict(float)
    for row in kernels:
        kinds[_kind(str(row["name"]))] += row["dur"] / kernel_us
    products = [r for r in kernels if _kind(str(r["name"])) in {"matrix product", "convolution"}]
    product_us = sum(row["dur"] for row in products)
    return {
        "device_ms": (end - start) / 1e3,
        "busy_share": _length(busy) / ((end - start) or 1.0),
        "busy_share_of_steps": (
            _length(inside) / sum(b - a for a, b in steps) if steps and len(busy) else None
        ),
        "kernels": len(kernels),
        "kernel_mean_us": kernel_us / max(len(kernels), 1),
        "kernel_ms": kernel_us / 1e3,
        "communication_ms": _length(_union(communication)) / 1e3,
        "exposed_communication_ms": (
            (_length(busy) - _length(_union(compute))) / 1e3 if communication else 0.0
        ),
        "kinds": {name: round(share, 3) for name, share in sorted(kinds.items(), key=_by_value)},
        "product_16_bit_share": (
            sum(r["dur"] for r in products if _SIXTEEN_BIT.search(str(r["name"]))) / product_us
            if product_us
            else None
        ),
        "copies": _copies(device),
        "top_kernels": _largest(_totals(kernels), 12),
        **_gaps(device, busy, rows),
    }


def _by_value(item: tuple[str, float]) -> float:
    return -item[1]


def _kind(name: str) -> str:
    if _COMMUNICATION.search(name) and not name.startswith("triton"):
        return "communication"
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def _copies(device: Sequence[dict[str, Any]]) -> dict[str, tuple[float, int, float]]:
    """Milliseconds, number and MiB per kind of copy."""
    kinds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0, 0.0])
    for row in device:
        if "memcpy" not in row["cat"]:
            continue
        total = kinds[str(row["name"])]
        total[0] += row["dur"] / 1e3
        total[1] += 1
        total[2] += float((row.get("args") or {}).get("bytes", 0) or 0) / 2**20
    return {name: (round(t[0], 3), int(t[1]), round(t[2], 3)) for name, t in kinds.items()}


def _gaps(
    device: Sequence[dict[str, Any]], busy: Intervals, rows: Sequence[dict[str, Any]]
) -> Measures:
    """Idle time of the device: what the host did meanwhile, and what ended it."""
    runtime = [row for row in rows if row["cat"] in _RUNTIME]
    by_link = {_link(row): row for row in runtime if _link(row) is not None}
    first_at = {}
    for row in sorted(device, key=lambda row: -row["ts"]):
        first_at[row["ts"]] = row
    host = [row for row in rows if row["cat"] in _HOST | _RUNTIME and not _is_step(row)]
    by_thread: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(host, key=lambda row: row["ts"]):
        by_thread[row.get("tid")].append(row)
    starts = {tid: np.array([row["ts"] for row in rows]) for tid, rows in by_thread.items()}
    late = unlinked = total = 0.0
    during: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    ended: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    largest = []
    for (_, gap_start), (gap_end, _) in pairwise(busy):
        idle = float(gap_end - gap_start)
        total += idle
        follower = first_at[gap_end]
        launch = by_link.get(_link(follower))
        _add(ended, str(follower["name"])[:70], idle)
        if launch is None:
            unlinked += idle
            continue
        if launch["ts"] + launch["dur"] > gap_start:
            late += idle
        for moment in (0.25, 0.5, 0.75):
            name = _innermost(by_thread, starts, launch.get("tid"), gap_start + moment * idle)
            _add(during, name, idle / 3)
        largest.append((idle, str(follower["name"])[:60]))
    largest.sort(reverse=True)
    return {
        "idle_ms": total / 1e3,
        "idle_launched_late_share": late / total if total else 0.0,
        "idle_unlinked_share": unlinked / total if total else 0.0,
        "idle_while": _largest({k: (v[0] / 1e3, int(v[1])) for k, v in during.items()}, 12),
        "idle_ended_by": _largest({k: (v[0] / 1e3, int(v[1])) for k, v in ended.items()}, 6),
        "largest_gaps_ms": [(round(us / 1e3, 3), name) for us, name in largest[:6]],
    }


def _innermost(
    by_thread: dict[Any, list[dict[str, Any]]], starts: dict[Any, Any], tid: Any, at: float
) -> str:
    """The innermost call of a thread at a moment."""
    rows = by_thread.get(tid, [])
    index = int(np.searchsorted(starts.get(tid, np.zeros(0)), at, side="right")) - 1
    for row in reversed(rows[max(index - 400, 0) : index + 1]):
        if row["ts"] + row["dur"] >= at:
            return f"{row['cat']}: {str(row['name'])[:70]}"
    return "nothing recorded"


def _add(totals: dict[str, list[float]], name: str, us: float) -> None:
    totals[name][0] += us
    totals[name][1] += 1


def _link(row: dict[str, Any]) -> Any:
    arguments = row.get("args") or {}
    return arguments.get("correlation", arguments.get("External id"))


def _waiting_operators(host: Sequence[dict[str, Any]]) -> list[tuple[str, float, int]]:
    """Operators around calls that wait for the device, by the time that these wait."""
    totals: dict[str, tuple[float, int]] = {}
    by_thread: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(host, key=lambda row: (row["ts"], -row["dur"])):
        stack = by_thread[row.get("tid")]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= row["ts"]:
            stack.pop()
        stack.append(row)
        if row["cat"] in _RUNTIME and _WAITS.search(str(row["name"])):
            names = [str(r["name"]) for r in stack if r["cat"] in {"cpu_op", "operator"}]
            around = " > ".join(names[:1] + names[1:][-1:]) or "no operator"
            ms, number = totals.get(f"{row['name']} in {around}"[:110], (0.0, 0))
            totals[f"{row['name']} in {around}"[:110]] = (ms + row["dur"] / 1e3, number + 1)
    return _largest(totals, 6)


def _self_times(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[float, int]]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    stacks: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["ts"], -row["dur"])):
        stack = stacks[row.get("tid")]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= row["ts"]:
            stack.pop()
        if stack:
            totals[str(stack[-1]["name"])][0] -= row["dur"]
        total = totals[str(row["name"])]
        total[0] += row["dur"]
        total[1] += 1
        stack.append(row)
    return {name: (us / 1e3, int(number)) for name, (us, number) in totals.items()}


def _totals(rows: Iterable[dict[str, Any]]) -> dict[str, tuple[float, int]]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for row in rows:
        _add(totals, str(row["name"])[:110], row["dur"])
    return {name: (us / 1e3, int(number)) for name, (us, number) in totals.items()}


def _largest(
    totals: dict[str, tuple[float, int]], number: int = 10
) -> list[tuple[str, float, int]]:
    ranked = sorted(totals.items(), key=lambda item: -item[1][0])[:number]
    return [(name, round(ms, 3), count) for name, (ms, count) in ranked]


def _union_of(rows: Sequence[dict[str, Any]]) -> float:
    return _length(_union(rows))


def _union(rows: Sequence[dict[str, Any]]) -> Intervals:
    if not rows:
        return np.zeros((0, 2))
    spans = np.array(sorted((row["ts"], row["ts"] + row["dur"]) for row in rows))
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.flatnonzero(np.r_[True, spans[1:, 0] > reach[:-1]])
    return np.stack([spans[first, 0], np.r_[reach[first[1:] - 1], reach[-1]]], axis=1)


def _clipped(busy: Intervals, steps: Sequence[tuple[float, float]]) -> Intervals:
    parts = [np.clip(busy, start, end) for start, end in steps]
    return np.concatenate(parts) if parts else np.zeros((0, 2))


def _length(spans: Intervals) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum()) if len(spans) else 0.0


def _xplane(content: bytes) -> Measures:
    """Kernel times of the GPU planes: the few fields that are needed, without a schema."""
    kernels: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    spans: list[tuple[float, float]] = []
    host: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    planes = []
    for plane in _fields(content).get(1, []):
        fields = _fields(plane)
        name = fields.get(2, [b""])[0].decode("utf-8", "replace")
        planes.append(name)
        names = dict(map(_metadata, fields.get(4, [])))
        for line in map(_fields, fields.get(3, [])):
            line_name = line.get(2, [b""])[0].decode("utf-8", "replace")
            base_us = line.get(3, [0])[0] / 1e3
            for event in map(_fields, line.get(4, [])):
                what = names.get(event.get(1, [0])[0], "")
                start_us = base_us + event.get(2, [0])[0] / 1e6
                us = event.get(3, [0])[0] / 1e6
                if name.startswith("/device:GPU") and "Stream" in line_name:
                    _add(kernels, what[:110], us)
                    spans.append((start_us, start_us + us))
                elif name.startswith("/host:CPU"):
                    _add(host, what[:110], us)
    rows = [{"ts": start, "dur": end - start} for start, end in spans]
    busy = _union(rows)
    width = float(busy[-1, 1] - busy[0, 0]) if len(busy) else 0.0
    return {
        "planes": planes,
        "device_events": len(spans),
        "device_ms": width / 1e3,
        "busy_share": _length(busy) / width if width else None,
        "top_kernels": _largest({k: (v[0] / 1e3, int(v[1])) for k, v in kernels.items()}, 14),
        "host": _largest({k: (v[0] / 1e3, int(v[1])) for k, v in host.items()}, 25),
    }


def _metadata(entry: bytes) -> tuple[int, str]:
    """One entry of the map from event ids to names."""
    value = _fields(_fields(entry).get(2, [b""])[0])
    return value.get(1, [0])[0], value.get(2, [b""])[0].decode("utf-8", "replace")


def _fields(message: bytes) -> dict[int, list[Any]]:
    """The fields of a protocol buffer: integers, and bytes for everything else."""
    fields: dict[int, list[Any]] = defaultdict(list)
    at = 0
    while at < len(message):
        key, at = _integer(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _integer(message, at)
            fields[key >> 3].append(value)
        else:
            size, at = _integer(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            fields[key >> 3].append(message[at : at + size])
            at += size
    return fields


def _integer(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
