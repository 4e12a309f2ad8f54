"""Writes the ranks of a run as varied copies of a recorded one.

    python benchmarks/uneven_ranks.py RECORDED.json.gz run/ --ranks 64

Every rank has its own clock and arrives at each collective with jitter. One rank in a hundred (at
least one) is always late. All leave together, so early ranks wait.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import big_kineto

JITTER_US, LATE_US, CLOCK_NS = 50, 3_000, 2_000_000_000
_BASE_NS = 1_700_000_000_000_000_000


def late_ranks(count: int) -> list[int]:
    """Which ranks are late: the same ones as in `programs/reduce_ranks.py`."""
    generator = np.random.default_rng(count)
    late: list[int] = generator.choice(count, size=max(count // 100, 1), replace=False).tolist()
    return sorted(late)


def write(source: Path, folder: Path, count: int) -> list[Path]:
    """Write one trace per rank.

    Args:
        source: A Kineto trace with NCCL collectives.
        folder: The folder to write to; it is created.
        count: The number of ranks.

    Returns:
        The files, in order of rank.
    """
    recorded = big_kineto.read(source)
    decoded = msgspec.json.decode(b"[" + recorded.events + b"]", type=list[msgspec.Raw])
    events = [bytes(event) for event in decoded]
    calls: dict[int, dict[str, Any]] = {}
    for at, text in enumerate(events):
        if b'"Group size"' in text or b"nccl" in text:
            event = json.loads(text)
            if "Group size" in event.get("args", {}):
                event["args"]["Group size"] = count
                events[at] = json.dumps(event).encode()
            if event.get("cat") == "kernel" and "nccl" in event["name"]:
                calls[at] = event
    base_ns = int(bytes(recorded.top.get("baseTimeNanoseconds", b"0"))) or _BASE_NS
    generator = np.random.default_rng(count)
    delay_us = np.abs(generator.normal(0, JITTER_US, size=(count, len(calls)))).round()
    delay_us[late_ranks(count)] += LATE_US
    early_us = delay_us.max(axis=0) - delay_us
    ahead_ns = generator.integers(-CLOCK_NS, CLOCK_NS, size=count)
    files = [folder / f"rank{rank}.1700000000000000000.pt.trace.json.gz" for rank in range(count)]
    for rank, file in enumerate(files):
        shifted = list(events)
        for (at, event), waits_us in zip(calls.items(), early_us[rank].tolist(), strict=True):
            earlier = {"ts": event["ts"] - waits_us, "dur": event["dur"] + waits_us}
            shifted[at] = json.dumps(event | earlier).encode()
        top = recorded.top | {
            "distributedInfo": _raw({"backend": "nccl", "rank": rank, "world_size": count}),
            "baseTimeNanoseconds": _raw(base_ns + int(ahead_ns[rank])),
        }
        big_kineto.write(top, [b",\n".join(shifted)], file)
    return files


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, required=True)
    given = parser.parse_args()
    write(given.source, given.folder, given.ranks)


if __name__ == "__main__":
    main()
