"""Decides which captures to compare if a path contains several.

- A base with one run is compared with every run in the targets.
- A base with several runs is compared run by run with the runs of the same name in each target.
- If a run was recorded several times, its latest recording is used.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.captures import Capture, Listing
from tb_perfadvisor.ingest.files.tree import is_url
from tb_perfadvisor.ingest.recordings import LEFT_OVER
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import printable_name

# Sessions named by their time of recording sort by time.
_TIME = regex(r"\d{4}(?:_\d\d){5}")
_MAX_NAMED = 5


class Choice(Struct, frozen=True):
    """A capture to compare."""

    listing: Listing
    capture: Capture

    @property
    def place(self) -> tuple[str, ...]:
        """The parts of the path of its run."""
        return place_of(self.listing.root, self.capture.run)


class Group(Struct, frozen=True):
    """The captures of one comparison."""

    base: Choice
    targets: tuple[Choice, ...]


def place_of(root: str, run: str) -> tuple[str, ...]:
    """The parts of the path of a run."""
    path = root.split("://", 1)[-1] if is_url(root) else os.path.abspath(root)  # noqa: PTH100
    below = () if run == "." else tuple(run.split("/"))
    return (*(printable_name(part) for part in re.split(r"[/\\]", path) if part), *below)


def pair(base: Listing, targets: Sequence[Listing]) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """Group captures into comparisons.

    There is at least one capture below each path. Notes tell the user how captures were chosen.
    """
    notes: list[str] = []
    runs = _runs(base, notes)
    runs_of_targets = [_runs(target, notes) for target in targets]
    if len(runs) == 1:
        (only,) = runs.values()
        compared = [choice for others in runs_of_targets for choice in _without(only, others)]
        if any(_files(choice) == _files(only) for choice in compared):
            notes.append(f"{only.place[-1]} is compared with itself. Name another run.")
        return (Group(only, tuple(compared)),), tuple(notes)
    groups = []
    for run, choice in runs.items():
        same = tuple(others[run] for others in runs_of_targets if run in others)
        if same:
            groups.append(Group(choice, same))
        if len(same) < len(runs_of_targets):
            notes.append(f"Run {run!r} of the base has no counterpart in the targets.")
    extra = dict.fromkeys(run for others in runs_of_targets for run in others if run not in runs)
    notes += [f"Run {run!r} of the targets has no counterpart in the base." for run in extra]
    if not groups:
        raise UsageError(
            f"contains {len(runs)} runs ({_listed(runs)}), and no target has one of the same name.",
            where=base.root,
            hint="Name the path of one run.",
        )
    return tuple(groups), tuple(notes)


def distinct_names(places: Sequence[tuple[str, ...]], sessions: Sequence[str]) -> list[str]:
    """The shortest names that distinguish runs: the end of each path, as long as needed.

    A session distinguishes runs with the same path.
    """
    distinct = set(places)
    length = 1
    while len({place[-length:] for place in distinct}) < len(distinct):
        length += 1
    names = ["/".join(place[-length:]) or "." for place in places]
    recorded = defaultdict(set)
    for name, session in zip(names, sessions, strict=True):
        recorded[name].add(session)
    return [
        f"{name} / {session}" if len(recorded[name]) > 1 else name
        for name, session in zip(names, sessions, strict=True)
    ]


def _runs(listing: Listing, notes: list[str]) -> dict[str, Choice]:
    """The capture to use for each run."""
    captures: dict[str, list[Capture]] = defaultdict(list)
    for capture in listing.captures:
        captures[capture.run].append(capture)
    left_out = (file for file in listing.rejected if file.reason == LEFT_OVER)
    notes += [f"{file.path} was left out. {file.reason}" for file in left_out]
    return {
        run: Choice(listing, _latest(run, recorded, listing, notes))
        for run, recorded in captures.items()
    }


def _latest(run: str, captures: list[Capture], listing: Listing, notes: list[str]) -> Capture:
    if len(captures) == 1:
        return captures[0]
    sessions = [capture.session for capture in captures]
    place = Choice(listing, captures[0]).place[-1]
    if len(set(sessions)) < len(sessions) or not all(_TIME.match(session) for session in sessions):
        raise UsageError(
            f"contains {len(captures)} captures ({_listed(sessions)}).",
            where=place if run == "." else run,
            hint="Name the file or the session of one of them.",
        )
    latest = max(captures, key=lambda capture: capture.session)
    notes.append(
        f"{place} was recorded {len(captures)} times. Using the latest recording, {latest.session}."
    )
    return latest


def _without(base: Choice, others: dict[str, Choice]) -> Iterable[Choice]:
    """All captures but the base itself, unless there are no others."""
    without_base = [choice for choice in others.values() if _files(choice) != _files(base)]
    return without_base or others.values()


def _files(choice: Choice) -> frozenset[str]:
    """Identifies the files of a capture, by whatever path they were named."""
    root = choice.listing.root
    if is_url(root):
        return frozenset(f"{root.rstrip('/')}/{file.path}" for file in choice.capture.files)
    # Resolves links, and the case of names on Windows.
    return frozenset(
        os.path.normcase(os.path.realpath(Path(root, file.system_path)))
        for file in choice.capture.files
    )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
