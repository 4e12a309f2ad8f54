"""One repetition of a recorded pair.

    python -m recorded_pairs.repetition NAME DIRECTORY

Measures the slow and the fixed program without the profiler, then records a profile of each
below DIRECTORY. Its ``times.json`` is written last: a repetition that has one is complete.

Each of the four runs has its own process, because state left by a run (compiled programs, allocated
memory, profiler hooks) changes the next one: programs that recompile took up to a third less time
if the same process had compiled the same shapes before.
"""

from __future__ import annotations

import importlib
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, set_start_method
from pathlib import Path

from pairs import ROLES, Role

from recorded_pairs.catalog import pair_named


def main(name: str, directory: Path) -> None:
    """Measures both programs, then records both."""
    times: dict[str, dict[str, int]] = {role: {} for role in ROLES}
    for role in ROLES:
        times[role]["step_ns"] = _alone(name, role, None)
    for role in ROLES:
        target = directory / role
        target.mkdir(parents=True, exist_ok=True)
        times[role]["profiled_step_ns"] = _alone(name, role, target)
    (directory / "times.json").write_text(json.dumps(times), encoding="utf-8")


def _alone(name: str, role: Role, directory: Path | None) -> int:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_run, name, role, directory).result()


def _run(name: str, role: Role, directory: Path | None) -> int:
    """Measures a program, or records it if there is a directory for its profile."""
    # Fork, so that a loader's workers inherit data sets that cannot be pickled.
    set_start_method("fork", force=True)
    program = importlib.import_module(f"recorded_pairs.{pair_named(name).program}")
    step_ns: int = (
        program.measure(name, role) if directory is None else program.record(name, role, directory)
    )
    return step_ns


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
