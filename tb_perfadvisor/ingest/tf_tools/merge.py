"""From what each file of a host holds to what the session says, where the files agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.tf_tools.contents import MAX_STEPS, Contents, Figure, Part, StepSums
from tb_perfadvisor.ingest.tf_tools.naming import ToolFile
from tb_perfadvisor.trace import Aspect, Note
from tb_perfadvisor.units import NS_PER_MS, format_duration

# Files round, and some leave cores or steps out of their mean; beyond a percent they are of
# different recordings, or edited.
_SAME_MEAN = 0.01
# Whose word counts first, where several files state the same thing: what states it best.
_BEST_FIRST = (
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
_COMMUNICATION = (Part.COLLECTIVES, Part.WAITING, Part.BETWEEN_CORES)

T = TypeVar("T")


class Result(Struct, frozen=True):
    """One file, read."""

    path: str
    file: ToolFile
    contents: Contents


class Merged(Struct, frozen=True):
    """What the files of one host say together."""

    path: str
    """Of the file that the steps come from."""
    contents: Contents
    notes: tuple[Note, ...]


def merge(results: Sequence[Result], *, where: str) -> Merged:
    """Put the files of one host together.

    The steps come from one file. Files with other steps than those are left out, with a note.

    Raises:
        UnreadableProfileError: When no file has the time of any step.
    """
    with_steps = sorted((one for one in results if one.contents.steps), key=_steps_best_first)
    if not with_steps:
        raise UnreadableProfileError(
            "these results hold no times of steps.",
            where=where,
            hint="TensorFlow's profiler saw no step begin and end while it recorded: "
            "record again, for several steps.",
        )
    chosen = with_steps[0]
    if len(chosen.contents.steps) > MAX_STEPS:
        raise UnreadableProfileError(
            f"it holds more than {MAX_STEPS:,} steps.", where=chosen.path, hint="Record fewer."
        )
    strangers = [one for one in with_steps[1:] if not _agree(chosen.contents, one.contents)]
    agreeing = sorted(
        (one for one in results if one not in strangers),
        key=lambda one: _BEST_FIRST.index(one.file.tool),
    )
    contents = [one.contents for one in agreeing]
    steps = chosen.contents.steps
    shows = {aspect for one in agreeing if one.file.tool != _POD for aspect in one.contents.shows}
    pod = next((one.contents.steps for one in agreeing if one.file.tool == _POD), None)
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
        device_type=_first(contents, lambda one: one.device_type) or "",
        device_count=_first(contents, lambda one: one.device_count),
        precision=_first(contents, lambda one: one.precision),
        matrix_unit_share=_first(contents, lambda one: one.matrix_unit_share),
        figures=_figures(contents),
        input_stages=_first(contents, lambda one: one.input_stages) or (),
        operators=_first(contents, lambda one: one.operators) or (),
        kernels=_first(contents, lambda one: one.kernels) or (),
        peak_allocated_bytes=_first(contents, lambda one: one.peak_allocated_bytes),
        memory_bytes=_first(contents, lambda one: one.memory_bytes),
        messages=tuple(dict.fromkeys(text for one in contents for text in one.messages)),
    )
    notes = (*_disagreements(chosen, strangers), *_contradictions(chosen))
    return Merged(chosen.path, merged, notes)


def _steps_best_first(result: Result) -> tuple[bool, bool, bool]:
    file = result.file
    return (file.tool == _POD, file.form != "pb", file.tool != "input_pipeline")


def _agree(one: Contents, other: Contents) -> bool:
    return _is_near(one.mean_ms or 0.0, other.mean_ms or 0.0)


def _is_near(one: float, other: float) -> bool:
    return abs(one - other) <= _SAME_MEAN * max(one, other)


def _first(contents: Sequence[Contents], get: Callable[[Contents], T]) -> T | None:
    """The first of the files' words that says anything."""
    return next((value for one in contents if (value := get(one))), None)


def _figures(contents: Sequence[Contents]) -> tuple[Figure, ...]:
    found: dict[str, Figure] = {}
    for one in contents:
        for figure in one.figures:
            found.setdefault(figure.label, figure)
    return tuple(found.values())


def _with_communication(step: StepSums, pod: Sequence[StepSums]) -> StepSums | None:
    """A step with the communication that the pod viewer saw of it taken out of its compute.

    In both files a step takes as long as it does on its slowest core. None when the pod viewer
    has no such step.
    """
    other = next((one for one in pod if one.number == step.number), None)
    if other is None or not _is_near(step.duration_ms, other.duration_ms):
        return None
    found = {part: other.parts_ms.get(part, 0.0) for part in _COMMUNICATION}
    compute_ms = step.parts_ms.get(Part.COMPUTE, 0.0) - sum(found.values())
    if compute_ms < 0:
        return None
    parts = {**step.parts_ms, **found, Part.COMPUTE: compute_ms}
    return replace(step, parts_ms=MappingProxyType(parts))


def _disagreements(chosen: Result, strangers: Sequence[Result]) -> list[Note]:
    if not strangers:
        return []
    others = ", ".join(f"{_name(one)} ({_mean(one.contents.mean_ms)} a step)" for one in strangers)
    return [
        Note(
            "results-disagree",
            "warning",
            f"The files of this session are not of one recording, or were edited: {_name(chosen)} "
            f"({_mean(chosen.contents.mean_ms)} a step) is used, {others} left out.",
            "Keep the files of one recording together.",
        )
    ]


def _contradictions(chosen: Result) -> list[Note]:
    """Where a file says one thing in its steps and another in its own sums."""
    contents = chosen.contents
    notes = []
    stated, mean = contents.stated_mean_ms, contents.mean_ms
    if stated is not None and mean is not None and not _is_near(stated, mean):
        notes.append(
            Note(
                "results-disagree",
                "warning",
                f"{_name(chosen)} contradicts itself: its steps take {_mean(mean)} on average, "
                f"and it states {_mean(stated)}. The steps are used.",
            )
        )
    longer = sum(
        sum(step.parts_ms.values()) > (1 + _SAME_MEAN) * step.duration_ms for step in contents.steps
    )
    if longer:
        notes.append(
            Note(
                "results-disagree",
                "warning",
                f"{_name(chosen)} contradicts itself: in {longer} of {len(contents.steps)} steps "
                "the parts take longer than the step. What does not fit is left out.",
            )
        )
    return notes


def _name(result: Result) -> str:
    return result.path.rsplit("/", 1)[-1]


def _mean(mean_ms: float | None) -> str:
    return format_duration(None if mean_ms is None else mean_ms * NS_PER_MS)
