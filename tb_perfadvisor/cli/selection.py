"""Selects the captures that a command works on, and the limits of its work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tb_perfadvisor.cli.terminal import note, show_progress
from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.plain_text import shell_path

if TYPE_CHECKING:
    from tb_perfadvisor.engine.config import Config
    from tb_perfadvisor.execution import Limits
    from tb_perfadvisor.ingest.captures import Capture, Listing
    from tb_perfadvisor.report.report import Report
    from tb_perfadvisor.sources import Repository


def captures_of_runs(listing: Listing, run: str | None) -> tuple[Capture, ...]:
    """The captures whose run matches a regular expression; all of them without one."""
    if run is None:
        return listing.captures
    captures = tuple(capture for capture in listing.captures if _pattern(run).search(capture.run))
    if not captures and listing.captures:
        raise UsageError(
            f"no run matches {run!r}.",
            hint="Runs: " + ", ".join(sorted({capture.run or "." for capture in listing.captures})),
        )
    return captures


def listing_of_runs(path: str, run: str | None) -> Listing:
    """The captures below a path whose run was asked for, at least one.

    Raises:
        NothingFoundError: If there is none.
        UsageError: If no run matches.
    """
    from tb_perfadvisor.api.analyses import nothing_found
    from tb_perfadvisor.ingest.discovery import discover

    with show_progress(f"listing {path}"):
        listing = discover(path)
    captures = captures_of_runs(listing, run)
    if not captures:
        raise nothing_found(path, listing)
    note_incomplete_scan(path, listing)
    return replace(listing, captures=captures)


def report_of_last(path: str, listing: Listing) -> Report:
    """The report of the only capture, or of the last one of a run that was recorded repeatedly."""
    from tb_perfadvisor.api.analyses import analyze_captures
    from tb_perfadvisor.engine.config import Config
    from tb_perfadvisor.engine.report_cache import open_report_cache
    from tb_perfadvisor.ingest.recordings import is_rich, order_of, series_of
    from tb_perfadvisor.report.report import Report

    settings = Config()
    captures = listing.captures
    if len(captures) > 1 and len({series_of(capture) for capture in captures}) == 1:
        # A rich one slows the program, so times are taken from others.
        last = max(captures, key=lambda capture: (not is_rich(capture), *order_of(capture)))
        note(f"of {len(captures)} recordings, the patches are for the last: {last.run}.")
        captures = (last,)
    if len(captures) > 1:
        names = ", ".join(dict.fromkeys(capture.run or "." for capture in captures[:5]))
        raise UsageError(
            f"contains {len(captures)} captures ({names}).",
            where=path,
            hint="Name one of them, or a session or file of it.",
        )
    with show_progress("reading", 1) as progress:
        (result,) = analyze_captures(
            listing,
            captures,
            settings,
            progress.describe,
            report_cache=open_report_cache(Report, settings, note),
        )
    if not isinstance(result, Report):
        raise PerfAdvisorError(result.reason, where=result.path)
    return result


def inputs_of(
    listings: Iterable[Listing], *, config: Path | None = None, repository: Repository | None = None
) -> Iterator[Path]:
    """The local files that a command reads, or may read.

    `listings` are what was found below the paths of the command.
    """
    from tb_perfadvisor.ingest.files.tree import is_url

    for listing in listings:
        if is_url(listing.root):
            continue
        for capture in listing.captures:
            for file in (*capture.files, *capture.attached):
                yield Path(listing.root, file.system_path)
        for events in listing.event_files:
            yield Path(listing.root, events.system_path)
        for rejected in listing.rejected:
            yield Path(listing.root, rejected.path)
    if config is not None:
        yield config
    if repository is not None:
        yield from (repository.root / path for path in repository.files)


def limits_of(time_limit_s: float | None) -> Limits:
    """The limits of the tab, with the user's time limit if there is one."""
    from tb_perfadvisor.execution import Limits, limits_from_environment

    limits = limits_from_environment(note)
    return limits if time_limit_s is None else Limits(time_limit_s, limits.memory_bytes)


def with_run_options(
    config: Config, price_per_device_hour: float | None, total_steps: int | None
) -> Config:
    """The settings, with facts about the run that were given as options."""
    given = {"price_per_device_hour": price_per_device_hour, "total_steps": total_steps}
    known = {name: value for name, value in given.items() if value is not None}
    return replace(config, run=replace(config.run, **known))


def note_incomplete_scan(path: str, listing: Listing) -> None:
    """Tell the user if the listing does not cover everything below the path."""
    if listing.gaps:
        note(
            f"{path} was not fully scanned: {'; '.join(listing.gaps)}. "
            "Name a directory closer to the profiles to see all of them."
        )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"--run {text!r} is not a valid regular expression: {error}.") from error


def git_apply(repository: Path) -> str:
    """The command that applies a patch on its input to a repository."""
    if repository == Path():
        return "git apply"
    return f"git -C {shell_path(str(repository))} apply"
