"""Writes inputs that are large in one dimension: events, nesting, names, links, planes, tags, ….

Each dimension is a function that writes an input with some number of items into a directory. The
rest of such an input is as plain as can be, so that reading it costs what that dimension costs. A
format is one module, with its functions and the table `LARGEST`; add a line below for a new one.
"""

from __future__ import annotations

from scaled_inputs import (
    chrome,
    compile_log,
    directories,
    event_files,
    kineto,
    memory_snapshot,
    xplane,
)
from scaled_inputs.dimension import Dimension

DIMENSIONS: dict[str, Dimension] = {
    write.__name__.replace("_", "-"): Dimension(write, largest, program)
    for module, program in (
        (kineto, "analyze_input.py"),
        (xplane, "analyze_input.py"),
        (chrome, "analyze_input.py"),
        (compile_log, "analyze_input.py"),
        (memory_snapshot, "analyze_input.py"),
        (directories, "analyze_input.py"),
        (event_files, "describe_runs.py"),
    )
    for write, largest in module.LARGEST.items()
}
"""By name."""
