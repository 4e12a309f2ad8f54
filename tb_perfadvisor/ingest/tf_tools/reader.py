"""Reads the tool results of one host as a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import BinaryIO, Final, Literal, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.tf_tools import ToolFile, tool_file
from tb_perfadvisor.ingest.tf_tools.contents import MAX_STEPS, Contents, Figure, StepPart, StepSums
from tb_perfadvisor.ingest.tf_tools.documents import read_document
from tb_perfadvisor.ingest.tf_tools.protos import read_proto
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import (
    Aspect,
    Assembler,
    CopyDirection,
    Device,
    EventKind,
    Precision,
    Source,
    Totals,
    Trace,
    TrackKind,
)
from tb_perfadvisor.units import NS_PER_MS, format_bytes, format_duration, format_share

# Files round, and some exclude cores or steps from their mean. A larger difference means different
# recordings, or edited files.
_MAX_DIFFERENCE = 0.01
# If several files state the same quantity, the first of these tools is used.
_PRIORITY = (
    "overview_page",
    "pod_viewer",
    "input_pipeline",
    "kernel_stats",
    "tensorflow_stats",
    "memory_profile",
    "memory_viewer",
    "op_profile",
)
_POD = "pod_viewer"
_COMMUNICATION = (StepPart.COLLECTIVES, StepPart.WAITING, StepPart.BETWEEN_CORES)

T = TypeVar("T")


class Result(Struct, frozen=True):
    """A decoded file."""

    path: str
    file: ToolFile
    contents: Contents


class Merged(Struct, frozen=True):
    """The merged content of the files of one host."""

    path: str
    """The file that the steps come from."""
    contents: Contents
    notes: tuple[Note, ...]


def merge(results: Sequence[Result], *, where: str) -> Merged:
    """Merge the files of one host.

    The steps come from one file. Files whose steps differ are left out, with a note.
    """
    with_steps = sorted((result for result in results if result.contents.steps), key=_step_priority)
    if not with_steps:
        raise UnreadableProfileError(
            "these results contain no step times.",
            where=where,
            hint="No complete step was recorded: record again, for several steps.",
        )
    chosen = with_steps[0]
    if len(chosen.contents.steps) > MAX_STEPS:
        raise UnreadableProfileError(
            f"the file contains more than {MAX_STEPS:,} steps.",
            where=chosen.path,
            hint="Record fewer steps.",
        )
    excluded = [result for result in with_steps[1:] if not _agree(chosen.contents, result.contents)]
    agreeing = sorted(
        (result for result in results if result not in excluded),
        key=lambda result: _PRIORITY.index(result.file.tool),
    )
    contents = [result.contents for result in agreeing]
    steps = chosen.contents.steps
    shows = {
        aspect
        for result in agreeing
        if result.file.tool != _POD
        for aspect in result.contents.shows
    }
    pod = next((result.contents.steps for result in agreeing if result.file.tool == _POD), None)
    if chosen.file.tool == _POD:
        shows |= chosen.contents.shows
    elif pod is not None and Aspect.COMMUNICATION not in shows:
        split = [_with_communication(step, pod) for step in steps]
        if None not in split:
            steps = tuple(step for step in split if step is not None)
            shows.add(Aspect.COMMUNICATION)
    merged = Contents(
        steps=steps,
        shows=frozenset(shows),
        device_type=_first(contents, lambda file: file.device_type) or "",
        device_count=_first(contents, lambda file: file.device_count),
        precision=_first(contents, lambda file: file.precision),
        matrix_unit_share=_first(contents, lambda file: file.matrix_unit_share),
        figures=_figures(contents),
        input_stages=_first(contents, lambda file: file.input_stages) or (),
        operators=_first(contents, lambda file: file.operators) or (),
        kernels=_first(contents, lambda file: file.kernels) or (),
        peak_allocated_bytes=_first(contents, lambda file: file.peak_allocated_bytes),
        memory_bytes=_first(contents, lambda file: file.memory_bytes),
        messages=tuple(dict.fromkeys(text for file in contents for text in file.messages)),
    )
    notes = (*_disagreements(chosen, excluded), *_contradictions(chosen))
    return Merged(chosen.path, merged, notes)


def _step_priority(result: Result) -> tuple[bool, bool, bool]:
    file = result.file
    return (file.tool == _POD, file.form != "pb", file.tool != "input_pipeline")


def _agree(left: Contents, right: Contents) -> bool:
    return _is_near(left.mean_ms or 0.0, right.mean_ms or 0.0)


def _is_near(left: float, right: float) -> bool:
    return abs(left - right) <= _MAX_DIFFERENCE * max(left, right)


def _first(contents: Sequence[Contents], get: Callable[[Contents], T]) -> T | None:
    """The value of the first file that has one."""
    return next((value for file in contents if (value := get(file))), None)


def _figures(contents: Sequence[Contents]) -> tuple[Figure, ...]:
    by_label: dict[str, Figure] = {}
    for file in contents:
        for figure in file.figures:
            by_label.setdefault(figure.label, figure)
    return tuple(by_label.values())


def _with_communication(step: StepSums, pod: Sequence[StepSums]) -> StepSums | None:
    """A step whose communication, known from the pod viewer, is separated from its compute.

    In both files, the slowest core determines the duration of a step. None if the pod viewer does
    not have the step.
    """
    pod_step = next((other for other in pod if other.number == step.number), None)
    if pod_step is None or not _is_near(step.duration_ms, pod_step.duration_ms):
        return None
    communication = {part: pod_step.parts_ms.get(part, 0.0) for part in _COMMUNICATION}
    compute_ms = step.parts_ms.get(StepPart.COMPUTE, 0.0) - sum(communication.values())
    if compute_ms < 0:
        return None
    parts = {**step.parts_ms, **communication, StepPart.COMPUTE: compute_ms}
    return replace(step, parts_ms=MappingProxyType(parts))


def _disagreements(chosen: Result, excluded: Sequence[Result]) -> list[Note]:
    if not excluded:
        return []
    ignored = ", ".join(
        f"{_file_name(result)} ({_mean(result.contents.mean_ms)} per step)" for result in excluded
    )
    return [
        Note(
            "results-disagree",
            "warning",
            "The files of this session come from different recordings or were edited. Steps are "
            f"from {_file_name(chosen)} ({_mean(chosen.contents.mean_ms)} per step); "
            f"ignored: {ignored}.",
            "Keep the files of each recording in a directory of their own.",
        )
    ]


def _contradictions(chosen: Result) -> list[Note]:
    """Notes if a file's steps disagree with its own sums."""
    contents = chosen.contents
    notes = []
    stated, mean = contents.stated_mean_ms, contents.mean_ms
    if stated is not None and mean is not None and not _is_near(stated, mean):
        notes.append(
            Note(
                "results-disagree",
                "warning",
                f"{_file_name(chosen)} is inconsistent: its steps take {_mean(mean)} on average, "
                f"but it states {_mean(stated)}. The steps are used.",
            )
        )
    longer = sum(
        sum(step.parts_ms.values()) > (1 + _MAX_DIFFERENCE) * step.duration_ms
        for step in contents.steps
    )
    if longer:
        notes.append(
            Note(
                "results-disagree",
                "warning",
                f"{_file_name(chosen)} is inconsistent: in {longer} of {len(contents.steps)} steps "
                "the parts take longer than the step. The excess is left out.",
            )
        )
    return notes


def _file_name(result: Result) -> str:
    return result.path.rsplit("/", 1)[-1]


def _mean(mean_ms: float | None) -> str:
    return format_duration(None if mean_ms is None else mean_ms * NS_PER_MS)


# Each event is as long as its sum and lies on the thread or device of its part, so that attribution
# returns the parts of each step. The order of events within a step is arbitrary.

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


class _Role(Struct, frozen=True):
    """How a part appears in the trace."""

    label: str
    kind: EventKind
    direction: CopyDirection = CopyDirection.UNKNOWN
    operation: str = ""


# In the order of layout. Preparing launches is RUNTIME, because a LAUNCH is one call that is linked
# to one device event.
_ROLES: Final[dict[StepPart, _Role]] = {
    StepPart.INPUT: _Role("the input pipeline", EventKind.INPUT_WAIT),
    StepPart.COMPILE: _Role("compilation", EventKind.COMPILE),
    StepPart.LAUNCH: _Role("preparing launches", EventKind.RUNTIME),
    StepPart.HOST_COMPUTE: _Role("operators on the host", EventKind.OPERATOR),
    StepPart.TO_DEVICE: _Role(
        "copies to the device", EventKind.COPY, direction=CopyDirection.HOST_TO_DEVICE
    ),
    StepPart.COMPUTE: _Role("device compute", EventKind.KERNEL),
    StepPart.COLLECTIVES: _Role("collectives", EventKind.COLLECTIVE, operation="all-reduce"),
    StepPart.BETWEEN_CORES: _Role(
        "sends and receives between cores", EventKind.COLLECTIVE, operation="send and receive"
    ),
    StepPart.DEVICE_TO_DEVICE: _Role(
        "copies from device memory to device memory",
        EventKind.COPY,
        direction=CopyDirection.DEVICE_TO_DEVICE,
    ),
    StepPart.OUTPUT: _Role(
        "output to the host", EventKind.COPY, direction=CopyDirection.DEVICE_TO_HOST
    ),
}
_INFEED: Final = _Role("infeed", EventKind.INFEED_WAIT)
_ON_DEVICE: Final = (
    EventKind.KERNEL,
    EventKind.COLLECTIVE,
    EventKind.COPY,
    EventKind.INFEED_WAIT,
)


def _name(step: int) -> str:
    """The profiler numbers steps of programs without numbers by -1."""
    return f"TensorFlow step {step}" if step >= 0 else "TensorFlow step"


def add_steps(assembler: Assembler, contents: Contents) -> tuple[Device, ...]:
    """Lay out the steps and return the devices that they ran on.

    `contents` has what the session's files hold, merged.
    """
    steps = contents.steps
    kind = _device_kind(contents.device_type)
    used = {part for step in steps for part in step.parts_ms}
    has_device = any(part in used and role.kind in _ON_DEVICE for part, role in _ROLES.items())
    host = assembler.add_track(TrackKind.HOST_THREAD, label="Host: sums by step")
    device = (
        assembler.add_track(TrackKind.DEVICE_STREAM, device=0, label="Device: sums by step")
        if has_device
        else host
    )
    duration = _whole_ns(np.array([step.duration_ms for step in steps]))
    start = np.cumsum(duration) - duration
    assembler.add_events(
        start,
        duration,
        kind=EventKind.STEP,
        name=[assembler.intern(_name(step.number)) for step in steps],
        track=host,
        step=[step.number if 0 <= step.number < 2**31 else -1 for step in steps],
    )
    begin = np.zeros_like(duration)
    waiting = _part_ms(steps, StepPart.WAITING)
    reached_ms = np.zeros(len(steps))
    for part, role in _ROLES.items():
        if part is StepPart.INPUT and has_device and kind != "gpu":
            role = _INFEED
        # Round the ends, not the lengths, so that parts that fill the step leave no gap. Parts that
        # exceed the step are cut at its end; a note reports them.
        reached_ms = (
            reached_ms + _part_ms(steps, part) + (waiting if part is StepPart.COLLECTIVES else 0)
        )
        end = np.minimum(_whole_ns(reached_ms), duration)
        is_present = end > begin
        events = assembler.add_events(
            (start + begin)[is_present],
            (end - begin)[is_present],
            kind=role.kind,
            name=assembler.intern(f"{role.label} (sum of the step)"),
            track=device if role.kind in _ON_DEVICE else host,
        )
        _describe(assembler, role, events, contents, _whole_ns(waiting[is_present]))
        begin = end
    if not has_device and kind == "other":
        return ()
    return tuple(
        Device(
            index=index,
            name=contents.device_type,
            kind=kind,
            memory_bytes=contents.memory_bytes,
        )
        for index in range(contents.device_count or 1)
    )


def _describe(
    assembler: Assembler, role: _Role, events: Int32s, contents: Contents, waiting: Int64s
) -> None:
    """Add the attributes of a part's events."""
    if role.kind == EventKind.KERNEL:
        assembler.add_kernels(events, precision=_only_precision(contents))
    elif role.kind == EventKind.COPY:
        assembler.add_copies(events, direction=role.direction)
    elif role.kind == EventKind.COLLECTIVE:
        has_waiting = role is _ROLES[StepPart.COLLECTIVES] and bool(waiting.any())
        assembler.add_collectives(
            events,
            operation=assembler.intern(role.operation),
            waiting_ns=waiting if has_waiting else -1,
        )


def _only_precision(contents: Contents) -> Precision:
    """The precision of all compute; unknown if there are several."""
    shares = contents.precision or {}
    return next((width for width, share in shares.items() if share == 1), Precision.UNKNOWN)


def _part_ms(steps: tuple[StepSums, ...], part: StepPart) -> NDArray[np.float64]:
    """The time of a part in each step."""
    return np.array([step.parts_ms.get(part, 0.0) for step in steps])


def _whole_ns(values_ms: NDArray[np.float64]) -> Int64s:
    return np.rint(values_ms * NS_PER_MS).astype(np.int64)


def _device_kind(name: str) -> Literal["gpu", "tpu", "other"]:
    upper = name.upper()
    return "gpu" if "GPU" in upper else "tpu" if "TPU" in upper else "other"


# The profiler limits its output: the largest known results are a few megabytes.
_LARGEST_BYTES = 256 << 20

Opener = Callable[[], AbstractContextManager[BinaryIO]]


def read_tf_tools(files: Mapping[str, Opener], source: Source) -> Trace:
    """Read the tool results of one host.

    `files` has the opener of each path; `tool_file` must know the names. `source` has run, session
    and host; the other fields are filled in here.
    """
    merged, notes = _read_files(files, where=source.path)
    contents = merged.contents
    assembler = Assembler()
    devices = add_steps(assembler, contents)
    filled = replace(
        source,
        path=merged.path,
        format="tf-tools",
        framework="tensorflow",
        producer="TensorFlow's profiler",
        has_shapes=False,
        has_stacks=False,
        has_memory=contents.peak_allocated_bytes is not None,
    )
    return assembler.finish(
        filled,
        devices=devices,
        notes=(_SUMMED, *notes, *merged.notes, *_notes(merged)),
        totals=Totals(
            shows=contents.shows,
            precision=contents.precision,
            kernels=contents.kernels,
            operators=contents.operators,
            input_stages=contents.input_stages,
            peak_allocated_bytes=contents.peak_allocated_bytes,
            matrix_unit_share=contents.matrix_unit_share,
            remedy=_REMEDY,
        ),
    )


def _read_files(files: Mapping[str, Opener], *, where: str) -> tuple[Merged, list[Note]]:
    """Read and merge the results of one host; files that cannot be read become notes."""
    results: list[Result] = []
    notes: list[Note] = []
    errors: list[PerfAdvisorError] = []
    for path, opener in files.items():
        try:
            results.append(_read_file(path, opener))
        except PerfAdvisorError as error:
            errors.append(error)
            message = f"{path} was left out: {error.message}"
            notes.append(Note("unsupported-file", "warning", message, error.hint))
    if errors and not any(result.contents.steps for result in results):
        raise errors[0]
    return merge(results, where=where), notes


def _read_file(path: str, opener: Opener) -> Result:
    file = tool_file(path)
    if file is None:
        raise UnreadableProfileError("this is not a tool result.", where=path)
    with opener() as stream:
        data = Inflated(stream, path).read(_LARGEST_BYTES + 1)
    if not data:
        raise UnreadableProfileError("the file is empty or damaged.", where=path)
    if len(data) > _LARGEST_BYTES:
        limit = format_bytes(_LARGEST_BYTES)
        raise UnreadableProfileError(f"the file is larger than {limit}.", where=path)
    contents: Contents = (
        read_proto(file.tool, data, where=path)
        if file.form == "pb"
        else read_document(file.tool, data, where=path)
    )
    return Result(path, file, contents)


_REMEDY = (
    "Record again with TensorFlow 2.4 or later, whose profiler keeps every event (.xplane.pb)."
)
_SUMMED = Note(
    "summed-results",
    "warning",
    "These files contain sums per step instead of events. The times are exact, but the order of "
    "events and the time between steps were not recorded: positions on the timeline are arbitrary. "
    "Kernels and operators cover the whole recording, on all devices.",
    _REMEDY,
)


def _notes(merged: Merged) -> list[Note]:
    """Notes on the profiler's messages and on figures that no other view shows."""
    contents = merged.contents
    notes = [
        Note("profiler-warning", "warning", f"The profiler reported: {text[:500]}")
        for text in contents.messages
    ]
    figures = [f"{format_share(figure.share)} {figure.label}" for figure in contents.figures]
    if contents.matrix_unit_share is not None:
        figures.insert(0, f"{format_share(contents.matrix_unit_share)} use of the matrix units")
    if figures:
        notes.append(
            Note(
                "recorded-figures",
                "info",
                f"The profiler states for the whole recording: {', '.join(figures)}.",
            )
        )
    return notes
