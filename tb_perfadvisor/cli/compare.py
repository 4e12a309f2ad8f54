"""`perfadvisor compare`: runs compared with a base."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tb_perfadvisor.cli.help import (
    CONFIG,
    PATH,
    RUN,
    TIME_LIMIT,
    WORKERS,
    Argument,
    Command,
    NumberRange,
    choice_option,
)
from tb_perfadvisor.cli.selection import inputs_of, limits_of, listing_of_runs
from tb_perfadvisor.cli.terminal import (
    EXIT_FOUND,
    EXIT_UNDECIDED,
    Format,
    Output,
    note,
    show_progress,
    write_result,
)
from tb_perfadvisor.errors import PerfAdvisorError

# Imported late, so that `--help` is fast.
if TYPE_CHECKING:
    from rich.console import Console

    from tb_perfadvisor.comparison.pairing import Choice, Group
    from tb_perfadvisor.comparison.run_facts import RunFacts
    from tb_perfadvisor.contract.model import Comparison
    from tb_perfadvisor.engine.config import Config
    from tb_perfadvisor.engine.report_cache import ReportCache
    from tb_perfadvisor.execution import Execution


_EXAMPLES = """\
Examples:
  perfadvisor compare runs/before runs/after
  perfadvisor compare runs/before runs/     # all other runs, each with the base
  perfadvisor compare main branch --fail-on-regression 5    # exit status 1 if 5 % slower"""


@click.command(cls=Command, epilog=_EXAMPLES)
@click.argument("base", cls=Argument, help="The run to compare with.")
@click.argument(
    "targets",
    cls=Argument,
    nargs=-1,
    required=True,
    help="Runs to compare with the base. A logdir stands for all runs in it.",
)
@choice_option(Format, "--format", "-f", default=Format.TEXT, help="Output format.")
@click.option("--output", "-o", type=PATH, help="Write to this file instead of the terminal.")
@RUN
@click.option(
    "--fail-on-regression",
    type=NumberRange(min=0),
    help="Exit with status 1 if a run is more than this many percent slower, with 95 % confidence; "
    "with 3 if the recordings do not tell.",
)
@CONFIG
@WORKERS
@TIME_LIMIT
@click.option(
    "--cache/--no-cache",
    default=True,
    show_default=True,
    help="Reuse what is known of unchanged files.",
)
def compare(
    base: str,
    targets: tuple[str, ...],
    format: Format,
    output: Path | None,
    run: str | None,
    fail_on_regression: float | None,
    config: Path | None,
    workers: int | None,
    time_limit: float | None,
    cache: bool,
) -> None:
    """Compare runs with a base: what changed, why, and whether advice paid off."""
    from tb_perfadvisor.comparison.pairing import pair
    from tb_perfadvisor.comparison.run_facts import RunFacts
    from tb_perfadvisor.engine.config import Config, read_config
    from tb_perfadvisor.engine.report_cache import open_report_cache
    from tb_perfadvisor.execution import memory_limit, open_execution
    from tb_perfadvisor.report.formats.comparison.render import (
        comparison_document,
        render_comparison,
    )

    settings = read_config(config) if config is not None else Config()
    settings.check()  # complain about unknown names before reading anything
    base_listing, *target_listings = (listing_of_runs(path, run) for path in (base, *targets))
    destination = Output(output, inputs_of([base_listing, *target_listings], config=config))
    groups, notes = pair(base_listing, target_listings)
    choices = [choice for group in groups for choice in (group.base, *group.targets)]
    sizes_bytes = (file.size_bytes for choice in choices for file in choice.capture.files)
    report_cache = open_report_cache(RunFacts, settings, note) if cache else None
    limits = limits_of(time_limit)
    with (
        memory_limit(limits.memory_bytes),
        open_execution(sizes_bytes, workers=workers, limits=limits) as execution,
    ):
        comparisons, failures = _compared(
            groups, settings, execution, report_cache, time_limit_s=limits.time_s
        )
    notes = (*notes, *failures)
    for message in notes:
        note(message)
    content = comparison_document(comparisons, notes)

    def print_text(console: Console) -> None:
        from tb_perfadvisor.report.formats.comparison.text import print_comparisons

        print_comparisons(content, console)

    write_result(partial(render_comparison, content), print_text, format, destination)
    if fail_on_regression is not None:
        _fail_on_regression(comparisons, fail_on_regression / 100)


def _compared(
    groups: tuple[Group, ...],
    settings: Config,
    execution: Execution,
    report_cache: ReportCache[RunFacts] | None,
    *,
    time_limit_s: float,
) -> tuple[list[Comparison], list[str]]:
    """One comparison per group, and a message for each capture that could not be read."""
    from tb_perfadvisor.api.comparisons import facts_of_all, with_distinct_names, with_scalars
    from tb_perfadvisor.comparison.compare import compare_facts

    comparisons: list[Comparison] = []
    failures: list[PerfAdvisorError] = []
    choices = [choice for group in groups for choice in (group.base, *group.targets)]
    with show_progress("reading", len(choices)) as progress:
        results = facts_of_all(
            choices,
            settings,
            progress.describe,
            execution=execution,
            report_cache=report_cache,
            time_limit_s=time_limit_s,
        )
        for group in groups:
            found: list[tuple[Choice, RunFacts]] = []
            for choice in (group.base, *group.targets):
                result = next(results)
                progress.advance()
                if not isinstance(result, PerfAdvisorError):
                    found.append((choice, result))
                elif len(choice.listing.captures) == 1:
                    raise result  # the user named it, so the others are no substitute
                else:
                    failures.append(result)
            if len(found) > 1 and found[0][0] is group.base:
                places = [choice.place for choice, _ in found]
                base, *targets = with_distinct_names([facts for _, facts in found], places)
                comparison = compare_facts(base, targets)
                chosen = [choice for choice, _ in found]
                comparisons.append(
                    with_scalars(comparison, [base, *targets], chosen, progress.describe)
                )
    if not comparisons:
        raise failures[0]
    return comparisons, [str(failure) for failure in failures]


def _fail_on_regression(comparisons: list[Comparison], most_share: float) -> None:
    """Exit with status 1 on a regression, else with 3 if some run may have one."""
    from tb_perfadvisor.comparison.compare import is_regression
    from tb_perfadvisor.report.formats.comparison.wording import undecided_text

    targets = [target for comparison in comparisons for target in comparison.targets]
    regressions = [is_regression(target, most_share) for target in targets]
    for target, is_slower in zip(targets, regressions, strict=True):
        if is_slower is None:
            note(
                f"{target.run.name}: cannot tell whether it is slower by more than "
                f"{most_share:.1%}. {undecided_text(target)}"
            )
    slower = [
        target.run.name for target, is_slower in zip(targets, regressions, strict=True) if is_slower
    ]
    if slower:
        note(f"slower than the base by more than {most_share:.1%}: {', '.join(slower)}.")
        sys.exit(EXIT_FOUND)
    if None in regressions:
        sys.exit(EXIT_UNDECIDED)
