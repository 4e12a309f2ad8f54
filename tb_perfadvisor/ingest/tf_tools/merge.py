"""Merges the result files of a host, as far as they agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.tf_tools import ToolFile
from tb_perfadvisor.ingest.tf_tools.contents import MAX_STEPS, Contents, Figure, StepPart, StepSums
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Aspect
from tb_perfadvisor.units import NS_PER_MS, format_duration

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
        f"{_name(result)} ({_mean(result.contents.mean_ms)} per step)" for result in excluded
    )
    return [
        Note(
            "results-disagree",
            "warning",
            "The files of this session come from different recordings or were edited. Steps are "
            f"from {_name(chosen)} ({_mean(chosen.contents.mean_ms)} per step); "
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
                f"{_name(chosen)} is inconsistent: its steps take {_mean(mean)} on average, but it "
                f"states {_mean(stated)}. The steps are used.",
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
                f"{_name(chosen)} is inconsistent: in {longer} of {len(contents.steps)} steps the "
                "parts take longer than the step. The excess is left out.",
            )
        )
    return notes


def _name(result: Result) -> str:
    return result.path.rsplit("/", 1)[-1]


def _mean(mean_ms: float | None) -> str:
    return format_duration(None if mean_ms is None else mean_ms * NS_PER_MS)
