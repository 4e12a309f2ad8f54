"""Tool results in JSON: Google chart tables, and the formats of the pod and memory viewers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.tf_tools.contents import (
    Contents,
    Figure,
    StepPart,
    StepSums,
    device_count,
    make_step,
    share,
    whole_ns,
)
from tb_perfadvisor.ingest.tf_tools.protos import (
    OPERATORS_ON_DEVICE,
    costliest_first,
    make_precision,
)
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Aspect, OperatorTotal
from tb_perfadvisor.units import NS_PER_MS

Json = Mapping[str, Any]

# Columns of the step table in all generations; None for idle or unknown time. TensorFlow's own sum
# of a TPU step excludes `hostTransferTimeMs`, and so does this table.
_COLUMNS: Final[dict[str, StepPart | None]] = {
    "noninfeedTimeMs": StepPart.COMPUTE,
    "computeTimeMs": StepPart.COMPUTE,
    "tcComputeTimeMs": StepPart.COMPUTE,
    "scv0ComputeTimeMs": StepPart.COMPUTE,
    "deviceComputeTimeMs": StepPart.COMPUTE,
    "infeedTimeMs": StepPart.INPUT,
    "inputTimeMs": StepPart.INPUT,
    "tcInfeedTimeMs": StepPart.INPUT,
    "scv0InfeedTimeMs": StepPart.INPUT,
    "tcOutfeedTimeMs": StepPart.OUTPUT,
    "outfeedTimeMs": StepPart.OUTPUT,
    "hostToDeviceTimeMs": StepPart.TO_DEVICE,
    "deviceToDeviceTimeMs": StepPart.DEVICE_TO_DEVICE,
    "deviceCollectivesTimeMs": StepPart.COLLECTIVES,
    "hostComputeTimeMs": StepPart.HOST_COMPUTE,
    "kernelLaunchTimeMs": StepPart.LAUNCH,
    "compileTimeMs": StepPart.COMPILE,
    "idleTimeMs": None,
    "tcIdleTimeMs": None,
    "otherTimeMs": None,
}
_FIGURES: Final = (
    ("device_idle_time_percent", "device idle"),
    ("host_idle_time_percent", "host idle"),
    ("flop_rate_utilization_relative_to_roofline", "of the roofline's FLOP rate"),
    ("memory_bw_utilization_relative_to_hw_limit", "of the memory's bandwidth"),
    ("device_tf_op_percent", OPERATORS_ON_DEVICE),
)
# The times of a core in all generations of the pod viewer. By its definition, the rest of the step
# is compute ("low flops compute").
_POD: Final = {
    StepPart.INPUT: ("hostInfeedDurationUs",),
    StepPart.OUTPUT: ("hostOutfeedDurationUs",),
    StepPart.COLLECTIVES: ("allReduceComputeDurationUs", "crsDurationUs"),
    StepPart.WAITING: ("allReduceSyncDurationUs",),
    StepPart.BETWEEN_CORES: ("sendDurationUs", "recvDurationUs"),
}
_HOST_ALLOCATOR: Final = regex(r"(?i).*(host|cpu|mkl)")
_MAX_CATEGORIES: Final = 3


def read_document(tool: str, data: bytes, *, where: str) -> Contents:
    """Decode a `.json` result.

    `tool` is the one in the file's name.
    """
    Budget(where, len(data)).expect_json(data)
    try:
        document = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise UnreadableProfileError(
            "this is not JSON, or it is truncated.",
            where=where,
            hint="Copy it again from where it was written.",
        ) from None
    read = _READERS.get(tool)
    contents = read(document) if read is not None else None
    if contents is None:
        raise UnreadableProfileError(f"this is not a result of the {tool} tool.", where=where)
    return contents


def _read_tables(document: Any) -> Contents | None:
    """Read the overview page or the input pipeline analyzer: a list of Google chart tables."""
    tables: list[Json] = [table for table in _items(document) if isinstance(table, dict)]
    if not any("cols" in table or "p" in table for table in tables):
        return None
    columns, steps = _step_table(tables)
    properties: dict[str, Any] = {}
    for table in tables:
        properties.update(_mapping(table.get("p")))
    stages = _stages(tables)
    count = _leading_number(properties.get("device_core_count"))
    figures = ((label, share(_percent(properties.get(key)))) for key, label in _FIGURES)
    return Contents(
        steps=steps,
        stated_mean_ms=_number(properties.get("steptime_ms_average")) or None,
        shows=_shown(columns, steps, stages, is_alone=count == 1),
        device_type=_text(properties.get("device_type") or properties.get("hardware_type")),
        device_count=device_count(count),
        precision=make_precision(
            share(_percent(properties.get("device_compute_16bit_percent"))),
            share(_percent(properties.get("device_compute_32bit_percent"))),
        ),
        matrix_unit_share=share(_percent(properties.get("mxu_utilization_percent"))) or None,
        figures=tuple(Figure(label, part) for label, part in figures if part),
        input_stages=stages,
    )


def _shown(
    columns: list[str],
    steps: tuple[StepSums, ...],
    stages: tuple[OperatorTotal, ...],
    *,
    is_alone: bool,
) -> frozenset[Aspect]:
    """The parts that a step table lists separately, according to its columns."""
    parts = {_COLUMNS[name] for name in columns if name in _COLUMNS}
    shown = set()
    # A TPU core always records infeed waits; a host may have an input pipeline without records.
    is_recorded = StepPart.HOST_COMPUTE not in parts or stages
    if StepPart.INPUT in parts and (
        is_recorded or any(StepPart.INPUT in step.parts_ms for step in steps)
    ):
        shown.add(Aspect.INPUT)
    if StepPart.COLLECTIVES in parts or is_alone:
        shown.add(Aspect.COMMUNICATION)
    if StepPart.DEVICE_TO_DEVICE in parts:
        shown.add(Aspect.COPIES)
    if StepPart.HOST_COMPUTE in parts:
        shown.add(Aspect.HOST)
    return frozenset(shown)


def _step_table(tables: list[Json]) -> tuple[list[str], tuple[StepSums, ...]]:
    """The columns and rows of the table of steps."""
    for table in tables:
        columns, rows = _table(table)
        if "stepnum" in columns:
            steps = (_step(row) for row in rows)
            return columns, tuple(step for step in steps if step is not None)
    return [], ()


def _step(row: Json) -> StepSums | None:
    number = _number(row.get("stepnum"))
    parts = dict.fromkeys(StepPart, 0.0)
    idle_ms = 0.0
    for name, part in _COLUMNS.items():
        value = _number(row.get(name)) or 0.0
        if part is None:
            idle_ms += value
        else:
            parts[part] += value
    return make_step(-1 if number is None else int(number), parts, idle_ms=idle_ms)


def _stages(tables: list[Json]) -> tuple[OperatorTotal, ...]:
    for table in tables:
        columns, rows = _table(table)
        if "opName" in columns and "selfTimeInMs" in columns:
            return costliest_first(
                OperatorTotal(
                    name=_text(row.get("opName")),
                    type=_text(row.get("category")),
                    is_on_device=False,
                    count=int(_number(row.get("count")) or 0),
                    total_ns=whole_ns(_number(row.get("timeInMs")) or 0.0, NS_PER_MS),
                    self_ns=whole_ns(_number(row.get("selfTimeInMs")) or 0.0, NS_PER_MS),
                )
                for row in rows
            )
    return ()


def _table(table: Json) -> tuple[list[str], Iterator[dict[str, Any]]]:
    """The column ids and the rows of a chart table."""
    columns = [_text(_mapping(column).get("id")) for column in _items(table.get("cols"))]
    rows = (
        {
            name: _mapping(cell).get("v")
            for name, cell in zip(columns, _items(_mapping(row).get("c")), strict=False)
        }
        for row in _items(table.get("rows"))
    )
    return columns, rows


def _read_pod(document: Any) -> Contents | None:
    """Read the pod viewer: all cores of each step. The slowest core determines the step."""
    pod = _mapping(document)
    if "podStatsSequence" not in pod:
        return None
    steps = []
    cores = 0
    for step in map(_mapping, _items(_mapping(pod["podStatsSequence"]).get("podStatsMap"))):
        records = [_mapping(core) for core in _mapping(step.get("podStatsPerCore")).values()]
        cores = max(cores, len(records))
        if records:
            slowest = max(records, key=_total_ms)
            steps.append(_pod_step(step.get("stepNum"), slowest))
    environment = _mapping(pod.get("runEnvironment"))
    return Contents(
        steps=tuple(step for step in steps if step is not None),
        shows=frozenset({Aspect.INPUT, Aspect.COMMUNICATION}),
        device_type=_text(environment.get("tpuType") or environment.get("deviceType")),
        device_count=device_count(cores),
    )


def _total_ms(record: Json) -> float:
    return (_number(record.get("totalDurationUs")) or 0.0) / 1e3


def _pod_step(number: Any, record: Json) -> StepSums | None:
    parts = {
        part: sum(_number(record.get(key)) or 0.0 for key in keys) / 1e3
        for part, keys in _POD.items()
    }
    total_ms = _total_ms(record)
    parts[StepPart.COMPUTE] = max(total_ms - sum(parts.values()), 0.0)
    known = _number(number if number is not None else record.get("stepNum"))
    return make_step(-1 if known is None else int(known), parts, step_ms=total_ms)


def _read_memory_profile(document: Any) -> Contents | None:
    """Read the memory profile: the peak of the device with the highest one."""
    profile = _mapping(document)
    if "memoryProfilePerAllocator" not in profile:
        return None
    peaks = []
    for name, allocator in _mapping(profile["memoryProfilePerAllocator"]).items():
        summary = _mapping(_mapping(allocator).get("profileSummary"))
        peak = _number(_mapping(summary.get("peakStats")).get("peakBytesInUse"))
        if peak and not _HOST_ALLOCATOR.match(name):
            peaks.append((int(peak), int(_number(summary.get("memoryCapacity")) or 0)))
    peak_bytes, limit_bytes = max(peaks, default=(0, 0))
    return Contents(
        peak_allocated_bytes=peak_bytes or None,
        memory_bytes=limit_bytes if limit_bytes >= peak_bytes > 0 else None,
    )


def _read_memory_viewer(document: Any) -> Contents | None:
    """Read XLA's buffer assignment of a program: all its allocations are live while it runs."""
    assignment = _mapping(document).get("bufferAssignment")
    if assignment is None:
        return None
    sizes = [
        int(_number(_mapping(allocation).get("size")) or 0)
        for allocation in _items(_mapping(assignment).get("bufferAllocations"))
    ]
    return Contents(peak_allocated_bytes=sum(sizes) or None)


def _read_op_profile(document: Any) -> Contents | None:
    """Read the op profile: each category's share of device time."""
    root = _mapping(_mapping(document).get("byCategory"))
    if not root:
        return None
    categories = []
    for child in _items(root.get("children")):
        node = _mapping(child)
        part = _number(_mapping(node.get("metrics")).get("time"))
        if part is not None and 0 < part <= 1:
            categories.append(Figure(f"of operations in {_text(node.get('name'))!r}", part))
    categories.sort(key=lambda figure: -figure.share)
    return Contents(figures=tuple(categories[:_MAX_CATEGORIES]))


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> float | None:
    """A finite number, possibly quoted: protobuf's JSON quotes 64-bit integers."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < 2.0**62 else None


def _percent(value: Any) -> float | None:
    """The number in `48.8%` or 48.8."""
    return _number(value.removesuffix("%") if isinstance(value, str) else value)


def _leading_number(value: Any) -> int | None:
    """The 8 in `8 (Replica count = 8, num cores per replica = 1)`."""
    words = value.split() if isinstance(value, str) else []
    number = _number(words[0] if words else value)
    return None if number is None else int(number)


_READERS: Final[dict[str, Callable[[Any], Contents | None]]] = {
    "overview_page": _read_tables,
    "input_pipeline": _read_tables,
    "pod_viewer": _read_pod,
    "memory_profile": _read_memory_profile,
    "memory_viewer": _read_memory_viewer,
    "op_profile": _read_op_profile,
}
