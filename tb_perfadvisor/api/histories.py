"""The recordings of a run as a time line, with what the run's scalars say about each moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tb_perfadvisor.engine.analysis import Progress
from tb_perfadvisor.errors import contained, log_bug
from tb_perfadvisor.ingest.event_files.runs import CandidateRuns, EventRun
from tb_perfadvisor.ingest.event_files.scalar_cache import ScalarCache
from tb_perfadvisor.ingest.event_files.timed_runs import TimedRuns, UnknownRunError
from tb_perfadvisor.ingest.recordings import split_step
from tb_perfadvisor.training.training import Profile, ProfileInRun, describe_training

# Histories are imported when they are needed.
if TYPE_CHECKING:
    from tb_perfadvisor.comparison.run_facts import RunFacts
    from tb_perfadvisor.contract.model import History


def history_of(
    name: str,
    recordings: Sequence[RunFacts],
    runs: Sequence[str],
    candidates: Sequence[CandidateRuns],
    progress: Progress | None = None,
    cache: ScalarCache | None = None,
) -> History:
    """The time line of some recordings.

    Args:
        name: Of the run.
        recordings: The oldest first.
        runs: The directory of each, relative to the logdir.
        candidates: Where each may have logged its scalars.
        progress: Called with a stage and a share of it (0-1).
        cache: What was read of event files before.
    """
    from tb_perfadvisor.comparison.history.history import make_history
    from tb_perfadvisor.contract.model import Moment

    logged: dict[int, ProfileInRun] = {}
    for places in dict.fromkeys(candidates):
        here = [place for place, each in enumerate(candidates) if each == places]
        if not places.is_read_beside:
            continue
        try:
            logged |= _logged(recordings, here, TimedRuns(places, cache, progress))
        except Exception as raised:  # a time line of profiles needs no scalars
            log_bug(contained(raised, name))
    moments = []
    for place, run in enumerate(runs):
        found, step, usual_ns = logged.get(place), split_step(run)[1], None
        if found is not None:
            step = found.first_step if step is None else step
            # Without a slowdown, the profile's steps are not those that were logged.
            if found.slowdown is not None and found.step_ns is not None:
                usual_ns = round(found.step_ns)
        moments.append(Moment(step=step, usual_step_ns=usual_ns))
    return make_history(name, recordings, moments)


def _logged(
    recordings: Sequence[RunFacts], places: Sequence[int], timed: TimedRuns
) -> dict[int, ProfileInRun]:
    """What scalars say about recordings, by their index.

    Raises:
        StoreError: If a store denies access, or cannot be reached.
        UnreadableProfileError: If a file cannot be opened.
    """
    from tb_perfadvisor.comparison.whole_run.profiled import span_of

    profiles: dict[EventRun, list[Profile]] = defaultdict(list)
    for place in places:
        facts, span = recordings[place], span_of(recordings[place].recorded)
        with suppress(UnknownRunError):
            if span is not None:
                profile = Profile(facts.session, *span, facts.median_step_ns, str(place))
                profiles[timed.run_of(span)].append(profile)
    found: dict[int, ProfileInRun] = {}
    for event_run, recorded in profiles.items():
        training = describe_training(timed.scalars(event_run), recorded)
        if training is not None and not training.is_per_epoch:
            found |= {int(each.capture_id): each for each in training.recordings}
    return found
