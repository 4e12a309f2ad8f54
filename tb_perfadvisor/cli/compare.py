"""`perfadvisor compare`: runs against a base."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from tb_perfadvisor.cli.help import PATH, WORKERS, Argument, Command, one_of
from tb_perfadvisor.cli.selection import matching, note_gaps
from tb_perfadvisor.cli.terminal import EXIT_FOUND, Format, note, watching, write
from tb_perfadvisor.errors import PerfAdvisorError

# What compares, and what draws, is imported when it is needed: `--help` must not wait for it.
if TYPE_CHECKING:
    from rich.console import Console

    from tb_perfadvisor.engine.config import Config
    from tb_perfadvisor.execution import Execution
    from tb_perfadvisor.ingest.discovery import Listing
    from tb_perfadvisor.report.comparison import Choice, Comparison, Group, RunFacts
    from tb_perfadvisor.report.report_cache import ReportCache


@click.command(cls=Command)
@click.argument("base", cls=Argument, help="The run to measure against.")
@click.argument(
    "targets",
    cls=Argument,
    nargs=-1,
    required=True,
    help="Runs to compare with it; a logdir names all in it.",
)
@one_of(Format, "--format", default=Format.TEXT, help="How to write the comparison.")
@click.option("--output", type=PATH, help="Write to this file in place of the terminal.")
@click.option("--run", help="Only captures whose run matches this regular expression.")
@click.option(
    "--fail-on-regression",
    type=click.FloatRange(min=0),
    help="Exit with 1 when a run is slower by more than so many percent, for sure.",
)
@click.option("--config", type=PATH, help="Settings in TOML: rules, limits, bandwidth.")
@WORKERS
@click.option(
    "--cache/--no-cache",
    default=True,
    show_default=True,
    help="Take facts of unchanged files from the user's cache directory.",
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
    cache: bool,
) -> None:
    """Compare runs with a base: what has changed, why, and whether advice has paid off."""
    from tb_perfadvisor.engine.config import Config, read_config
    from tb_perfadvisor.execution import open_execution
    from tb_perfadvisor.report.comparison import RunFacts, pair
    from tb_perfadvisor.report.comparison.render import comparison_document, render_comparison
    from tb_perfadvisor.report.report_cache import open_report_cache

    settings = read_config(config) if config is not None else Config()
    settings.rules()  # name a rule that does not exist before reading anything
    first, *more = (_listing(path, run) for path in (base, *targets))
    groups, notes = pair(first, more)
    choices = [choice for group in groups for choice in (group.base, *group.targets)]
    sizes_bytes = (file.size_bytes for choice in choices for file in choice.capture.files)
    report_cache = open_report_cache(RunFacts, settings) if cache else None
    with open_execution(sizes_bytes, workers=workers) as execution:
        comparisons, failures = _compared(groups, settings, execution, report_cache)
    notes = (*notes, *failures)
    for one in notes:
        note(one)
    content = comparison_document(comparisons, notes)

    def show(console: Console) -> None:
        from tb_perfadvisor.report.comparison.text import print_comparisons

        print_comparisons(content, console)

    write(partial(render_comparison, content), show, format, output)
    if fail_on_regression is not None:
        _judge(comparisons, fail_on_regression / 100)


def _listing(path: str, run: str | None) -> Listing:
    """What lies below a path, of the runs that are asked for."""
    from tb_perfadvisor import api
    from tb_perfadvisor.ingest.discovery import discover

    with watching(f"looking through {path}"):
        listing = discover(path)
    captures = matching(listing, run)
    if not captures:
        raise api.nothing_found(listing)
    note_gaps(path, listing)
    return replace(listing, captures=captures)


def _compared(
    groups: tuple[Group, ...],
    settings: Config,
    execution: Execution,
    report_cache: ReportCache[RunFacts] | None,
) -> tuple[list[Comparison], list[str]]:
    """One comparison per group, saying how far it is; and what could not be read, in words."""
    from tb_perfadvisor import api
    from tb_perfadvisor.report.comparison import compare_facts

    comparisons: list[Comparison] = []
    failures: list[PerfAdvisorError] = []
    choices = [choice for group in groups for choice in (group.base, *group.targets)]
    with watching("reading", len(choices)) as watch:
        results = api.facts_of_all(
            choices, settings, watch.tell, execution=execution, report_cache=report_cache
        )
        for group in groups:
            found: list[tuple[Choice, RunFacts]] = []
            for choice in (group.base, *group.targets):
                result = next(results)
                watch.advance()
                if not isinstance(result, PerfAdvisorError):
                    found.append((choice, result))
                elif len(choice.listing.captures) == 1:
                    raise result  # its path names it alone: the others are no substitute
                else:
                    failures.append(result)
            if len(found) > 1 and found[0][0] is group.base:
                places = [choice.place for choice, _ in found]
                base, *targets = api.named([facts for _, facts in found], places)
                comparisons.append(compare_facts(base, targets))
    if not comparisons:
        raise failures[0]
    return comparisons, [str(failure) for failure in failures]


def _judge(comparisons: list[Comparison], least_share: float) -> None:
    """Exit with 1 on a regression; say so where none could have been seen."""
    from tb_perfadvisor.report.comparison import is_regression

    targets = [target for comparison in comparisons for target in comparison.targets]
    for target in targets:
        if target.change.low_share is None:
            note(
                f"{target.run.name}: whether it has become slower cannot be told. "
                f"{target.headline}."
            )
    if any(is_regression(target, least_share) for target in targets):
        sys.exit(EXIT_FOUND)
