"""The tab's views besides the findings, one module per view.

Each module has a struct, which defines the JSON, and a function that makes it from the reference
worker's signals, or returns None if the profile has nothing to show. `VIEWS` lists them, and says
which reports have them: the tab shows their pages. See docs/adding-a-page.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, cast, get_type_hints

import msgspec

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.device.memory_use import memory_use
from tb_perfadvisor.signals.input.loader_workers import worker_batches
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.signals.ranks.parallel_dimensions import parallel_dimensions
from tb_perfadvisor.signals.ranks.ranks import ranks_of
from tb_perfadvisor.signals.recording.availability import shows_input
from tb_perfadvisor.signals.snapshots.course import memory_course
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace import EventKind

_ALL_ROWS = 100_000
"""A bound all the same: more would take gigabytes."""


class View(msgspec.Struct, frozen=True):
    """A view of the tab."""

    module: str
    """The module with the function `make_NAME_view`, which makes it from signals, or returns None
    if the profile has nothing to show."""
    is_available: Callable[[Signals], bool]
    """Whether a report has something to show in it. If not, the tab has no link to its page."""
    has_rows: bool = False
    """Whether this function takes the number of rows to list, `most_rows`."""


NOTABLE_INPUT_SHARE = 0.01
"""A step that waits less for its input gains nothing from a faster one."""


def _has_several_steps(signals: Signals) -> bool:
    return len(signals.steps) > 1


def _shows_a_pipeline(signals: Signals) -> bool:
    """Whether the step waits for input; if that is not recorded, what is done for it."""
    if shows_input(signals):
        return (signals.attribution.share(Cause.INPUT) or 0.0) >= NOTABLE_INPUT_SHARE
    totals = signals.trace.totals
    return (
        (totals is not None and bool(totals.input_stages))
        or len(tfdata(signals)) > 0
        or worker_batches(signals) is not None
    )


def _has_kernels(signals: Signals) -> bool:
    totals = signals.trace.totals
    if totals is not None:
        return bool(totals.kernels)
    return len(signals.trace.rows(EventKind.KERNEL)) > 0


def _has_operators(signals: Signals) -> bool:
    return len(signals.trace.rows(EventKind.OPERATOR)) > 0


def _has_calls(signals: Signals) -> bool:
    """Whether events were recorded. Sums and logs have none that call one another."""
    trace = signals.trace
    is_recorded = trace.totals is None and trace.compile_log is None
    return is_recorded and not trace.is_snapshot_only and len(trace.events) > 0


def _has_memory(signals: Signals) -> bool:
    return memory_use(signals) is not None


def _has_ranks(signals: Signals) -> bool:
    return len(ranks_of(signals)) > 1


def _has_snapshot(signals: Signals) -> bool:
    return signals.trace.is_snapshot_only or memory_course(signals) is not None


def _communicates(signals: Signals) -> bool:
    return bool(parallel_dimensions(signals))


def _is_server(signals: Signals) -> bool:
    return workload(signals).mode == Part.SERVER.label


VIEWS: Mapping[str, View] = MappingProxyType(
    {
        "steps": View("steps", _has_several_steps),
        "input": View("input", _shows_a_pipeline),
        "kernels": View("kernels", _has_kernels, has_rows=True),
        "operators": View("operators", _has_operators, has_rows=True),
        "calls": View("calls", _has_calls),
        "memory": View("memory", _has_memory),
        "snapshot": View("snapshot", _has_snapshot),
        "ranks": View("ranks", _has_ranks),
        "parallelism": View("ranks", _communicates),
        "serving": View("serving", _is_server),
    }
)
"""By name."""


def _maker(name: str) -> Callable[..., msgspec.Struct | None]:
    """The function that makes a view; a report for the terminal needs none."""
    module = import_module(f"{__name__}.{VIEWS[name].module}")
    return cast("Callable[..., msgspec.Struct | None]", getattr(module, f"make_{name}_view"))


def views_type() -> type[msgspec.Struct]:
    """A struct with a field for each view, for the schema."""
    fields = [(name, get_type_hints(_maker(name))["return"]) for name in VIEWS]
    return msgspec.defstruct("Views", fields, kw_only=True)


def available_views(signals: Signals) -> list[str]:
    """The names of the views that a report has, without making them."""
    return [name for name, view in VIEWS.items() if view.is_available(signals)]


def make_views(signals: Signals, *, has_all_rows: bool = False) -> dict[str, Any]:
    """All views by name, as values of JSON; None if there is nothing to show."""
    made = {
        name: _maker(name)(signals, most_rows=_ALL_ROWS)
        if has_all_rows and view.has_rows
        else _maker(name)(signals)
        for name, view in VIEWS.items()
    }
    views: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(made))
    return views
