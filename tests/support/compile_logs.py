"""Writes logs as `TORCH_TRACE` does."""

from __future__ import annotations

import json
from typing import Any


def record(header: dict[str, Any], payload: Any = None, *, process: int = 700) -> bytes:
    """One record. A payload that is not text becomes JSON over several lines, as PyTorch writes it.

    Args:
        header: The name of the record with its content, and what else is in the header.
        payload: The lines after the header.
        process: The number of the process.
    """
    head = f"V0102 15:04:05.678000 {process} torch/_dynamo/utils.py:1] {json.dumps(header)}"
    if payload is None:
        return f"{head}\n".encode()
    text = payload if isinstance(payload, str) else json.dumps(payload, indent=0)
    lines = "".join(f"\t{line}\n" for line in text.split("\n"))
    return f"{head}\n{lines}".encode()


def ids(compile_id: str) -> dict[str, int]:
    """What a header says of the compilation `FRAME/VERSION`."""
    frame, _, version = compile_id.partition("/")
    return {"frame_id": int(frame), "frame_compile_id": int(version), "attempt": 0}


def phase(name: str, start_us: float, end_us: float, *inside: bytes) -> bytes:
    """A phase of the compiler, with the records inside it."""
    both = [
        record({"chromium_event": {}}, {"name": name, "ts": at, "ph": ph, "tid": 0, "pid": 0})
        for ph, at in (("B", start_us), ("E", end_us))
    ]
    return both[0] + b"".join(inside) + both[1]


def artifact(name: str, compile_id: str, payload: Any) -> bytes:
    """A record that is called an artifact."""
    return record({"artifact": {"name": name, "encoding": "string"}, **ids(compile_id)}, payload)


def compiled(compile_id: str, function: str, line: int, **metrics: Any) -> bytes:
    """The records of one compilation: its start, and its metrics.

    Args:
        compile_id: `FRAME/VERSION`.
        function: Its name.
        line: Where it begins, in `/home/me/project/train.py`.
        **metrics: As in torch/_dynamo/utils.py, `CompilationMetrics`.
    """
    stated = {
        "compile_id": compile_id,
        "co_name": function,
        "co_filename": "/home/me/project/train.py",
        "co_firstlineno": line,
        **metrics,
    }
    return record({"dynamo_start": {"stack": []}, **ids(compile_id)}) + record(
        {"compilation_metrics": stated, **ids(compile_id)}
    )


def break_text(line: int, reason: str = "Failed to trace builtin operator") -> str:
    """The message of a graph break in `/home/me/project/train.py`, as PyTorch 2.13 writes it."""
    return (
        f"Graph break in user code at /home/me/project/train.py:{line}\n"
        "Graph Break Reason: Encountered graph break when attempting to trace CALL: a function "
        "call, e.g. f(x, y):\n\n"
        f"{reason}\n"
        "  Explanation: Dynamo does not know how to trace builtin operator `print`.\n"
        "  Hint: Avoid calling builtin `print`.\n"
        "  Hint: Please report an issue to PyTorch.\n\n"
        "User code traceback:\n"
        '  File "/home/me/project/train.py", line 90, in <module>\n'
        "    model(batch)\n"
    )


def example_log() -> bytes:
    """A function with a graph break that is compiled twice: 2.0 + 0.5 s, and 1.5 s of backward."""
    start_us = 1_767_225_600_000_000.0
    return b"".join(
        [
            record({"artifact": {"name": "torch_version"}}, {"pytorch_version": "2.13.0+cpu"}),
            phase(
                "entire_frame_compile",
                start_us,
                start_us + 2_000_000,
                artifact("dynamo_graph_break_reason", "0/0", break_text(11)),
                phase("inductor_compile", start_us + 500_000, start_us + 1_900_000),
                artifact("fx_graph_cache_miss", "0/0", {"key": "f1"}),
                artifact("aotautograd_cache_miss", "0/0", {"key": "a1"}),
                compiled(
                    "0/0",
                    "forward",
                    9,
                    start_time_us=1_767_225_600_000_000,
                    duration_us=2_000_000,
                    aot_autograd_cumulative_compile_time_us=1_600_000,
                    inductor_cumulative_compile_time_us=1_400_000,
                ),
            ),
            record(
                {"bwd_compilation_metrics": {"compile_id": "0/0", "duration_us": 1_500_000}}
                | ids("0/0")
            ),
            artifact(
                "recompile_reasons",
                "0/1",
                "0/0: tensor 'x' size mismatch at index 0. expected 16, actual 17",
            ),
            artifact("dynamo_graph_break_reason", "0/1", break_text(11)),
            artifact("fx_graph_cache_hit", "0/1", {"key": "f1"}),
            compiled("0/1", "forward", 9, duration_us=500_000),
        ]
    )
