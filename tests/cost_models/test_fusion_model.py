"""The check of the model of fusion, with a made-up recording and count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cost_models.fusion_model import compare, programs, summary

X = [1000]


def event(name: str, at: int, inputs: list[list[int]]) -> dict[str, object]:
    arguments = {"Input Dims": inputs, "Input type": ["float"] * len(inputs)}
    return {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 8,
        "args": arguments,
    }  # fmt: skip


def folder(tmp_path: Path, counted_bytes: int) -> Path:
    # A residual, and its activation; PyTorch's view of it computes nothing.
    events = [event("aten::add", 10, [X, X]), event("aten::view", 20, [X])]
    events.append(event("aten::silu", 30, [X]))
    trace = {"traceEvents": events, "schemaVersion": 1, "deviceProperties": []}
    (tmp_path / "sum_forward.pt.trace.json").write_text(json.dumps(trace))
    counted = {"part": "tuned", "bytes": counted_bytes}
    found = {"sum_forward": counted, "sum_training": counted}
    (tmp_path / "sum_training.pt.trace.json").write_text(json.dumps(trace))
    found |= {f"{name}_held": {**row, "part": "held out"} for name, row in found.items()}
    for name in ("forward", "training"):
        found[f"held_{name}"] = found.pop(f"sum_{name}_held")
        (tmp_path / f"held_{name}.pt.trace.json").write_text(json.dumps(trace))
    (tmp_path / "inductor.json").write_text(json.dumps(found))
    return tmp_path


def test_a_recording_against_a_count(tmp_path: Path) -> None:
    comparison = compare(folder(tmp_path, 12_000))[0]
    # Eager: 3 and 2 tensors of 4000 bytes. Fused: two are read and one is written.
    assert (comparison.eager_bytes, comparison.fused_bytes) == (20_000, 12_000)
    assert comparison.expected == comparison.true == pytest.approx(0.4)


def test_a_low_end_that_promises_too_much_is_counted(tmp_path: Path) -> None:
    exact, too_low = (summary(compare(folder(tmp_path, count))) for count in (12_000, 16_000))
    assert "| tuned, forward (1) | 0 points | 0 points | 1 | 0 |" in exact
    assert "| tuned, forward (1) | 20 points | 20 points | 0 | 1 |" in too_low
    listed = programs(compare(folder(tmp_path, 12_000)))
    assert "| sum forward | 0.0 | 40 % | 40 – **40** – 40 % |" in listed
