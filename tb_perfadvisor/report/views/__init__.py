"""The tab's views besides the findings, one module per view.

Each module has a struct, which defines the JSON, and a function that makes it from the reference
worker's signals, or returns None if the profile has nothing to show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tb_perfadvisor.report.views.input import InputView, make_input_view
from tb_perfadvisor.report.views.kernels import KernelsView, make_kernels_view
from tb_perfadvisor.report.views.memory import MemoryView, make_memory_view
from tb_perfadvisor.report.views.operators import OperatorsView, make_operators_view
from tb_perfadvisor.report.views.parallelism import ParallelismView, make_parallelism_view
from tb_perfadvisor.report.views.ranks import RanksView, make_ranks_view
from tb_perfadvisor.report.views.serving import ServingView, make_serving_view
from tb_perfadvisor.report.views.snapshot import SnapshotView, make_snapshot_view
from tb_perfadvisor.report.views.steps import StepsView, make_steps_view
from tb_perfadvisor.signals import Signals

STRUCTS: tuple[type[msgspec.Struct], ...] = (
    StepsView,
    InputView,
    RanksView,
    ParallelismView,
    MemoryView,
    SnapshotView,
    KernelsView,
    OperatorsView,
    ServingView,
)
"""For the schema."""
_MAKERS: dict[str, Callable[[Signals], msgspec.Struct | None]] = {
    "steps": make_steps_view,
    "input": make_input_view,
    "ranks": make_ranks_view,
    "parallelism": make_parallelism_view,
    "memory": make_memory_view,
    "snapshot": make_snapshot_view,
    "kernels": make_kernels_view,
    "operators": make_operators_view,
    "serving": make_serving_view,
}


def make_views(signals: Signals) -> dict[str, Any]:
    """All views by name, as values of JSON; None if there is nothing to show."""
    views: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode({name: make(signals) for name, make in _MAKERS.items()})
    )
    return views
