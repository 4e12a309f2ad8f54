"""Which captures are recordings of the same run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.ingest.captures import Capture, ProfileFile, directory_of
from tb_perfadvisor.patterns import regex

# Programs that record now and then write each recording into a directory of its own, named after
# its step: `step_00001020` (tb_perfadvisor.instrument), `iteration_100` (torchtitan, profiling.py).
_STEP = regex(r"(?:step|iteration)_(\d{1,15})(?P<rich>_rich)?")
_OF_GRAPHS = "capture_traces"
"""Where vLLM (`capture_torch_profiler`) and SGLang (`--enable-profile-cuda-graph`) record how they
capture GPU graphs, below the directory of their other profiles."""
_WITH_GRAPHS = ("kineto",)
_WITH_RICH = ("kineto",)
"""Profiles of XLA name shapes and lines of its operations in any case."""
LEFT_OVER = "It records what the program did after its loop, and no work of a step."


def split_step(run: str) -> tuple[str, int | None]:
    """The run that a directory belongs to, and the step that it is named after.

    >>> split_step("lm/step_00001020"), split_step("lm"), split_step("step_5_rich")
    (('lm', 1020), ('lm', None), ('.', 5))
    """
    above, _, last = run.rpartition("/")
    match = _STEP.fullmatch(last)
    return (run, None) if match is None else (above or ".", int(match[1]))


def is_rich(capture: Capture) -> bool:
    """Whether a recording has shapes, stacks and memory, which slow the program."""
    match = _STEP.fullmatch(capture.run.rpartition("/")[2])
    return match is not None and match["rich"] is not None


def series_of(capture: Capture) -> tuple[str, str]:
    """What the recordings of one run have in common: its name and their format."""
    return split_step(capture.run)[0], capture.format


def order_of(capture: Capture) -> tuple[str, int, str]:
    """Sorts the recordings of a run by time: sessions are named by it, and steps follow it."""
    return capture.session, split_step(capture.run)[1] or 0, capture.id


def with_rich(captures: Sequence[Capture]) -> tuple[Capture, ...]:
    """Captures with the nearest rich recording of their run, which is none of its own then."""
    series: dict[tuple[str, str], list[Capture]] = defaultdict(list)
    for capture in captures:
        if capture.format in _WITH_RICH and split_step(capture.run)[1] is not None:
            series[series_of(capture)].append(capture)
    changed: dict[str, Capture | None] = {}
    for recordings in series.values():
        rich = [each for each in recordings if is_rich(each)]
        light = [each for each in recordings if not is_rich(each)]
        if not rich or not light:
            continue
        for capture in light:
            nearest_one = min(rich, key=lambda each: abs(_step(each) - _step(capture)))
            changed[capture.id] = replace(capture, rich=nearest_one.files)
        changed |= {each.id: None for each in rich}
    found = (changed.get(capture.id, capture) for capture in captures)
    return tuple(capture for capture in found if capture is not None)


def with_graphs(captures: Sequence[Capture]) -> tuple[Capture, ...]:
    """Captures with the recordings of their graphs, which are none of their own then."""
    above: dict[str, str] = {}
    for capture in captures:
        parent, _, last = f"./{directory_of(capture.files[0].path)}".rpartition("/")
        if capture.format in _WITH_GRAPHS and last == _OF_GRAPHS:
            above[capture.id] = parent.removeprefix("./")
    servers = {
        directory_of(capture.files[0].path): capture.id
        for capture in captures
        if capture.format in _WITH_GRAPHS and capture.id not in above
    }
    graphs: dict[str, list[ProfileFile]] = defaultdict(list)
    joined = set()
    for capture in captures:
        server = servers.get(above.get(capture.id, ""))
        if server is not None and capture.id in above:
            graphs[server] += capture.files
            joined.add(capture.id)
    return tuple(
        replace(capture, graphs=tuple(graphs[capture.id])) if capture.id in graphs else capture
        for capture in captures
        if capture.id not in joined
    )


def _step(capture: Capture) -> int:
    return split_step(capture.run)[1] or 0
