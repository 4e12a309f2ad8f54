"""Compares recordings, and tells the history of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from tb_perfadvisor.api.analyses import Source, make_results, only_capture, read_capture, wrap_trace
from tb_perfadvisor.engine.analysis import Progress
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.report_cache import ReportCache
from tb_perfadvisor.errors import PerfAdvisorError, contained, log_bug
from tb_perfadvisor.execution import IN_PROCESS, Execution
from tb_perfadvisor.ingest.event_files.run_scalars import ScalarCache, open_scalar_cache
from tb_perfadvisor.ingest.event_files.runs import CandidateRuns, RunsByPlace, event_runs
from tb_perfadvisor.ingest.event_files.timed_runs import TimedRuns, UnknownRunError
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.trace import Run

if TYPE_CHECKING:
    from tb_perfadvisor.comparison.logged import LoggedRun
    from tb_perfadvisor.comparison.pairing import Choice
    from tb_perfadvisor.comparison.run_facts import RunFacts
    from tb_perfadvisor.contract.model import Comparison
from collections import defaultdict
from contextlib import suppress

from tb_perfadvisor.ingest.event_files.runs import EventRun
from tb_perfadvisor.ingest.recordings import split_step
from tb_perfadvisor.training.training import Profile, ProfileInRun, describe_training

if TYPE_CHECKING:
    from tb_perfadvisor.comparison.run_facts import RunFacts
    from tb_perfadvisor.contract.model import History


def compare(
    base: Source,
    target: Source,
    *more: Source,
    config: Config | None = None,
    progress: Progress | None = None,
    execution: Execution = IN_PROCESS,
) -> Comparison:
    """Compare captures with a base.

    Args:
        base: As for `analyze`.
        target: The capture to compare with the base.
        *more: Further captures to compare with it.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read.

    Raises:
        NothingFoundError: When a path holds no readable capture.
        UsageError: When one holds several.
    """
    from tb_perfadvisor.comparison.pairing import Choice

    found: list[Choice | Run] = []
    for source in (base, target, *more):
        named = wrap_trace(source)
        found.append(named if isinstance(named, Run) else Choice(*only_capture(named)))
    return compare_found(found, config or Config(), progress, execution=execution)


def compare_found(
    found: Sequence[Choice | Run],
    config: Config,
    progress: Progress | None = None,
    *,
    execution: Execution = IN_PROCESS,
) -> Comparison:
    """Compare captures that were listed, or runs that were read, with the first one.

    Args:
        found: The base and the targets.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read.

    Raises:
        PerfAdvisorError: When one cannot be read.
    """
    from tb_perfadvisor.comparison.compare import compare_facts
    from tb_perfadvisor.comparison.run_facts import make_facts

    facts, places = [], []
    choices: list[Choice | None] = []
    for choice in found:
        if isinstance(choice, Run):
            run = choice
            choices.append(None)
            places.append(tuple(run.name.split("/")))
        else:
            choices.append(choice)
            places.append(choice.place)
            run = read_capture(choice.listing, choice.capture, progress, execution)
        analysis = analyze_run(run, config, progress, execution.threads)
        facts.append(make_facts(analysis, build_report(analysis, config)))
    first, *others = with_distinct_names(facts, places)
    return with_scalars(compare_facts(first, others), facts, choices, progress)


def with_scalars(
    comparison: Comparison,
    facts: Sequence[RunFacts],
    choices: Sequence[Choice | None],
    progress: Progress | None = None,
) -> Comparison:
    """Add to a comparison what the scalars of the same runs say.

    Args:
        comparison: Of the runs.
        facts: Of the base and of each target.
        choices: Where each was found; None for a run that was not read from files.
        progress: Called with a stage and a share of it (0-1).
    """
    from tb_perfadvisor.comparison.logged import with_logged

    cache = open_scalar_cache()
    base, *targets = (
        None
        if choice is None
        else logged_of(
            RunsByPlace(event_runs(choice.listing)).candidates(choice.capture.run),
            run,
            progress,
            cache,
        )
        for run, choice in zip(facts, choices, strict=True)
    )
    return with_logged(comparison, base, targets)


def logged_of(
    candidates: CandidateRuns,
    facts: RunFacts,
    progress: Progress | None = None,
    cache: ScalarCache | None = None,
) -> LoggedRun | None:
    """What a comparison needs of the scalars of a run.

    Args:
        candidates: The runs with event files that it may belong to.
        facts: Of its profile.
        progress: Called with a stage and a share of it (0-1).
        cache: What was read of event files before.

    Returns:
        None if it has none, or too many to be read beside, or if they cannot be read.
    """
    from tb_perfadvisor.comparison.logged import logged_run
    from tb_perfadvisor.comparison.whole_run import span_of

    if not candidates.is_read_beside:
        return None
    timed = TimedRuns(candidates, cache, progress)
    try:
        event_run = timed.run_of(span_of(facts.recorded))
        scalars = timed.scalars(event_run)
    except UnknownRunError:
        return None
    except Exception as raised:  # a comparison of profiles needs no scalars
        log_bug(contained(raised, candidates.runs[0].run))
        return None
    return logged_run(f"{event_run.root}/{event_run.run}", scalars, facts.recorded)


def with_distinct_names(
    facts: Sequence[RunFacts], places: Sequence[tuple[str, ...]]
) -> list[RunFacts]:
    """Give each run of a comparison the shortest name that no other run has.

    Args:
        facts: The facts of each run.
        places: The parts of each run's path.
    """
    from tb_perfadvisor.comparison.pairing import distinct_names

    names = distinct_names(places, [run.session for run in facts])
    return [msgspec.structs.replace(run, name=name) for run, name in zip(facts, names, strict=True)]


def facts_of_all(
    choices: Sequence[Choice],
    config: Config,
    progress: Progress | None = None,
    *,
    execution: Execution = IN_PROCESS,
    report_cache: ReportCache[RunFacts] | None = None,
    time_limit_s: float = math.inf,
) -> Iterator[RunFacts | PerfAdvisorError]:
    """The facts of captures, one after the other; or why one cannot be read.

    Args:
        choices: The captures.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).
        execution: Where files are read.
        report_cache: Facts of unchanged files are taken from it, and new ones added.
        time_limit_s: The most time for each capture.
    """
    from tb_perfadvisor.comparison.run_facts import make_facts

    results = make_results(
        [(choice.listing, choice.capture) for choice in choices],
        lambda analysis: make_facts(analysis, build_report(analysis, config)),
        config,
        progress,
        execution=execution,
        cache=report_cache,
        time_limit_s=time_limit_s,
    )
    for _, result in results:
        yield result


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
    from tb_perfadvisor.comparison.history import make_history
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
    from tb_perfadvisor.comparison.whole_run import span_of

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
