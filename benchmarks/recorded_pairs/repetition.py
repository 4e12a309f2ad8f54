"""One repetition of a recorded pair, in a process of its own.

    python -m recorded_pairs.repetition NAME DIRECTORY

Measures the slow and the fixed program without the profiler, then records a profile of each
below DIRECTORY. Its ``times.json`` is written last: a repetition that has one is complete.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from pairs import ROLES

from recorded_pairs.catalogue import pair_named


def main(name: str, directory: Path) -> None:
    """Measures first: once a profiler has run, it may leave hooks behind."""
    program = importlib.import_module(f"recorded_pairs.{pair_named(name).program}")
    times: dict[str, dict[str, int]] = {role: {} for role in ROLES}
    for role in ROLES:
        times[role]["step_ns"] = program.measure(name, role)
    for role in ROLES:
        target = directory / role
        target.mkdir(parents=True, exist_ok=True)
        times[role]["profiled_step_ns"] = program.record(name, role, target)
    (directory / "times.json").write_text(json.dumps(times), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
