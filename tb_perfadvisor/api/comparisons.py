"""Compare captures with a base."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from tb_perfadvisor.api.loading import Source, only_capture, read_capture, wrap_trace
from tb_perfadvisor.api.results import make_results
from tb_perfadvisor.engine.analysis import Progress
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.report_cache import ReportCache
from tb_perfadvisor.errors import PerfAdvisorError, contained, log_bug
from tb_perfadvisor.execution import IN_PROCESS, Execution
from tb_perfadvisor.ingest.event_files.runs import CandidateRuns, RunsByPlace, event_runs
from tb_perfadvisor.ingest.event_files.scalar_cache import ScalarCache, open_scalar_cache
from tb_perfadvisor.ingest.event_files.timed_runs import TimedRuns, UnknownRunError
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.trace import Run

# Comparisons are imported when they are needed.
if TYPE_CHECKING:
    from tb_perfadvisor.comparison.logged import LoggedRun
    from tb_perfadvisor.comparison.pairing import Choice
    from tb_perfadvisor.comparison.run_facts import RunFacts
    from tb_perfadvisor.contract.model import Comparison


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
        analysis = analyze_run(run, config, progress)
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
    from tb_perfadvisor.comparison.whole_run.profiled import span_of

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
