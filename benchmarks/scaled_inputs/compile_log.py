"""Logs of torch.compile that are large in one dimension."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scaled_inputs.dimension import Write


def _log(records: Iterable[tuple[dict[str, Any], str]], folder: Path) -> None:
    encode = json.JSONEncoder(separators=(", ", ": ")).encode
    with (folder / "dedicated_log_torch_trace_abcdefgh.log").open("w") as file:
        for header, payload in records:
            file.write(f"V0102 15:04:05.678000 700 torch/_dynamo/utils.py:1] {encode(header)}\n")
            file.writelines(f"\t{line}\n" for line in payload.split("\n") if payload)


def _phase(ph: str, name: str, at_us: int) -> tuple[dict[str, Any], str]:
    event = {"name": name, "ph": ph, "ts": 1e15 + at_us, "tid": 0, "pid": 0}
    return {"chromium_event": {}}, json.dumps(event, indent=0)


def compile_log_phases(count: int, folder: Path) -> None:
    """Phases of the compiler, ten inside each other."""

    def records() -> Iterator[tuple[dict[str, Any], str]]:
        for at in range(0, count, 10):
            for depth in range(10):
                yield _phase("B", f"phase {depth}", 100 * at + depth)
            for depth in reversed(range(10)):
                yield _phase("E", f"phase {depth}", 100 * at + 50 - depth)

    _log(records(), folder)


def compile_log_recompilations(count: int, folder: Path) -> None:
    """Recompilations of one function, each with a graph break and a guard that failed."""

    def records() -> Iterator[tuple[dict[str, Any], str]]:
        for version in range(count):
            of = {"frame_id": 0, "frame_compile_id": version}
            guard = {"artifact": {"name": "recompile_reasons"}, **of}
            yield guard, f"0/{version}: n == {version}"
            breaks = {"artifact": {"name": "dynamo_graph_break_reason"}, **of}
            yield breaks, f"Graph break in user code at /a/b.py:{version + 1}\nwhy"
            metrics = {"co_name": "f", "co_filename": "/a/b.py", "duration_us": 1000}
            yield {"compilation_metrics": {**metrics, "co_firstlineno": 3}, **of}, ""

    _log(records(), folder)


LARGEST: dict[Write, int] = {
    compile_log_phases: 10**6,
    compile_log_recompilations: 10**5,
}
