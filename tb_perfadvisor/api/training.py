"""How fast runs trained, by the scalars that they logged and the profiles recorded of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tb_perfadvisor.api.analyses import analyze_capture
from tb_perfadvisor.engine.analyze import Progress
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import NothingFoundError, contained, log_bug
from tb_perfadvisor.ingest.captures import Capture
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.event_files.runs import find_event_runs, read_run, run_of_directory
from tb_perfadvisor.training.training import Profile, Training, describe_training


def describe_runs(
    path: str | os.PathLike[str], progress: Progress | None = None
) -> Iterator[tuple[str, Training | None]]:
    """How fast the runs below a path trained, by the scalars that they logged.

    Args:
        path: A local path, or any URL that fsspec opens.
        progress: Called with a stage and a share of it (0-1).

    Returns:
        Each run with event files, and what they say of its speed; None if that is nothing.

    Raises:
        NothingFoundError: When there is no event file.
    """
    runs = find_event_runs(path)
    if not runs:
        raise NothingFoundError(
            "contains no event file.",
            where=Path(path).name or str(path),
            hint="Expected events.out.tfevents.*, which TensorBoard's writers create.",
        )
    listing = discover(path)
    for run in runs:
        profiles = [
            profile
            for capture in listing.captures
            if run_of_directory(capture.run.split("/"))[0] == run.run
            and (profile := _profile_of(listing.root, capture, progress)) is not None
        ]
        yield run.run, describe_training(read_run(run), profiles)


def _profile_of(root: str, capture: Capture, progress: Progress | None) -> Profile | None:
    """When a capture was recorded, and its step time; None if it cannot be read or has no clock."""
    try:
        signals = analyze_capture(root, capture, Config(), progress).signals
    except Exception as raised:
        log_bug(contained(raised, capture.run))
        return None
    trace, steps = signals.trace, signals.steps
    if trace.source.origin_unix_ns is None:
        return None
    start_ns = trace.source.origin_unix_ns
    step_ns = float(np.median(steps.end_ns - steps.start_ns)) if len(steps) else None
    return Profile(capture.session, start_ns, start_ns + trace.duration_ns, step_ns)
