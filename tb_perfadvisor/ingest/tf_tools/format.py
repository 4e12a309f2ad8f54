"""Results of older TensorFlow profilers, as a format.

Lays out sums of steps as a trace: one event per part of each step, end to end.

Each event is as long as its sum and lies on the thread or device of its part, so that attribution
returns the parts of each step. The order of events within a step is arbitrary.

Results of single tools, as TensorFlow's profiler wrote them before 2021.

Where a recording has events, which say more than sums of them, results are only compared with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO, Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.captures import (
    Capture,
    ProfileFile,
    Rejected,
    directory_of,
    make_capture,
    profile_file,
)
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.format import Format, FoundFile, Grouped, Reader
from tb_perfadvisor.ingest.tf_tools.contents import Contents, StepPart, StepSums
from tb_perfadvisor.ingest.tf_tools.documents import read_document
from tb_perfadvisor.ingest.tf_tools.merge import (
    ALL_HOSTS,
    Merged,
    Result,
    may_hold_steps,
    merge,
    tool_file,
    tools_of,
)
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
    StatedResults,
    Totals,
    Trace,
    TrackKind,
)
from tb_perfadvisor.units import NS_PER_MS, format_bytes, format_share

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


def add_steps(assembler: Assembler, contents: Contents) -> tuple[Device, ...]:
    """Lay out the steps and return the devices that they ran on.

    Args:
        assembler: Receives the events.
        contents: The merged contents of the session's files.
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
        name=[assembler.intern(f"TensorFlow step {step.number}") for step in steps],
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

    Args:
        files: The opener of each path; `tool_file` must know the names.
        source: Run, session and host; the other fields are filled in here.

    Raises:
        UnreadableProfileError: If no file has step times.
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


def read_stated(files: Mapping[str, Opener], host: str) -> tuple[StatedResults, tuple[Note, ...]]:
    """Read what the results of one host state, to compare it with the events of the recording.

    Args:
        files: The opener of each path; `tool_file` must know the names.
        host: The host in the names.

    Returns:
        What they state, and notes on files that disagree or cannot be read.

    Raises:
        UnreadableProfileError: If no file has step times.
    """
    merged, notes = _read_files(files, where=next(iter(files), ""))
    contents, steps = merged.contents, merged.contents.steps
    whole_ms = sum(step.duration_ms for step in steps)
    input_ms = sum(step.parts_ms.get(StepPart.INPUT, 0.0) for step in steps)
    precision = contents.precision
    stated = StatedResults(
        file=merged.path.rsplit("/", 1)[-1],
        host=host,
        steps=len(steps),
        step_ns=whole_ms * NS_PER_MS / len(steps),
        input_share=input_ms / whole_ms if Aspect.INPUT in contents.shows else None,
        share_of_16_bits=None if precision is None else precision.get(Precision.BITS_16, 0.0),
    )
    return stated, (*notes, *merged.notes)


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


_WITHOUT_STEPS = (
    "of what TensorFlow's profiler wrote before 2021 there is only {}: no times of steps. Record "
    "again with TensorFlow 2.4 or later, which writes a .xplane.pb."
)


def _group(files: Sequence[FoundFile], earlier: Grouped) -> Grouped:
    """One capture per session or directory that has no events.

    Captures of events keep the results that lie beside them. Outside of sessions such names
    may be anything's, so results without steps are rejected only if the user named the file.
    """
    sessions: dict[tuple[str, str], list[FoundFile]] = defaultdict(list)
    for file in files:
        sessions[file.session or (directory_of(file.entry.path), "")].append(file)
    captures: list[Capture] = []
    rejected: list[Rejected] = []
    with_events = earlier.directories
    beside: dict[str, tuple[ProfileFile, ...]] = {}
    for (run, session), results in sessions.items():
        directory = directory_of(results[0].entry.path)
        found = _profile_files(result.entry for result in results)
        if directory in with_events:
            beside[directory] = found
            continue
        hosts = _files_of_hosts(found)
        if hosts:
            captures.append(
                make_capture(run, session or hosts[0].host, "tf-tools", hosts, merges_hosts=True)
            )
        elif results[0].session is not None or results[0].is_only_file:
            path = results[0].entry.path if results[0].is_only_file else directory
            reason = _WITHOUT_STEPS.format(", ".join(tools_of(found)))
            rejected.append(Rejected(path, reason))
    with_results = (
        replace(capture, results=beside.get(directory_of(capture.files[0].path), ()))
        for capture in earlier.captures
    )
    return Grouped((*with_results, *captures), (*earlier.rejected, *rejected))


def _files_of_hosts(files: Sequence[ProfileFile]) -> list[ProfileFile]:
    """The files of those hosts that have a file with the times of steps."""
    hosts = {file.host for file in files if may_hold_steps(file)}
    if len(hosts) > 1:
        # The hosts one by one say more than what was merged from them.
        hosts.discard(ALL_HOSTS)
    return [file for file in files if file.host in hosts]


def _profile_files(entries: Iterable[FileEntry]) -> tuple[ProfileFile, ...]:
    return tuple(
        profile_file(entry, host=tool.host)
        for entry in entries
        if (tool := tool_file(entry.path)) is not None
    )


def _reader() -> Reader:
    from tb_perfadvisor.ingest.tf_tools.format import read_tf_tools

    return read_tf_tools


TF_TOOLS = Format(
    name="tf-tools",
    label="output of an older TensorFlow Profiler",
    claims=lambda path: tool_file(path) is not None,
    group=_group,
    reader=_reader,
    framework="tensorflow",
)
