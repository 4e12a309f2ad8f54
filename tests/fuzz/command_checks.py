"""What holds for `perfadvisor history` and the tools of `perfadvisor mcp`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

from tb_perfadvisor.api.comparisons import facts_of_all, with_distinct_names
from tb_perfadvisor.comparison.history import make_history
from tb_perfadvisor.comparison.pairing import Choice
from tb_perfadvisor.comparison.run_facts import RunFacts
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.report_cache import ReportCache, open_report_cache
from tb_perfadvisor.errors import PerfAdvisorError, logger
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.mcp import answers as answers_module
from tb_perfadvisor.mcp.answers import MAX_BYTES, Answers
from tb_perfadvisor.report.formats.history import FORMATS, history_document, render_history
from tests.fuzz.invariants import BrokenError, check_json, check_numbers, check_text, raise_bugs

_VALID = Path(__file__).resolve().parents[2] / "demo_logs" / "pytorch_input_fixed"


def check_history(root: Path) -> None:
    """Show each capture of a log directory between two valid recordings.

    Raises:
        BrokenError: If something does not hold.
        Exception: Whatever was raised, unless it is an error for the user.
    """
    report_cache = open_report_cache(RunFacts, Config())
    recordings = _recordings(root, report_cache)
    if _recordings(root, report_cache) != recordings:
        raise BrokenError("the cache changes the facts of a comparison")
    (valid,) = _valid()
    for place, facts in recordings:
        places = [("before",), place, ("after",)]
        runs = with_distinct_names([valid, facts, valid], places)
        content = history_document([make_history("run", runs)])
        check_numbers(content)
        for form in FORMATS:
            text = render_history(content, form)
            check_json(text) if form == "json" else check_text(text, form)


@cache
def _valid() -> tuple[RunFacts, ...]:
    return tuple(facts for _, facts in _recordings(_VALID, None))


def _recordings(
    root: Path, report_cache: ReportCache[RunFacts] | None
) -> list[tuple[tuple[str, ...], RunFacts]]:
    """The place and the facts of each capture that can be read."""
    listing = discover(root)
    choices = [Choice(listing, capture) for capture in listing.captures]
    results = facts_of_all(choices, Config(), report_cache=report_cache)
    recordings = []
    for choice, result in zip(choices, results, strict=True):
        if isinstance(result, PerfAdvisorError):
            raise_bugs(result)
        else:
            recordings.append((choice.place, result))
    return recordings


def check_tools(root: Path, repository: Path | None = None) -> None:
    """Ask each tool that reads profiles about a log directory.

    Args:
        root: The log directory.
        repository: The code of the programs, for lines and patches; None for none.

    Raises:
        BrokenError: If something does not hold.
        Exception: Whatever was raised, unless it is an error for the user.
    """
    answers = Answers(root, repository)
    tools: tuple[tuple[str, Callable[[], str]], ...] = (
        ("text", answers.list_captures),
        ("text", partial(answers.doctor, "")),
        ("json", partial(answers.analyze, "")),
        ("markdown", partial(answers.finding, "", "1")),
        ("markdown", partial(answers.how_to_record, "jax", ".")),
        ("markdown", partial(answers.compare, "", "")),
    )
    for form, ask in tools:
        try:
            # What is installed does not depend on the files, and takes longer than they do.
            with no_logged_bugs(), patch.object(answers_module, "environment_notes", list):
                answer = ask()
        except PerfAdvisorError as error:
            raise_bugs(error)
            continue
        if len(answer.encode()) > MAX_BYTES:
            raise BrokenError(f"a tool answers with {len(answer.encode())} bytes")
        json.loads(answer) if form == "json" else check_text(answer, form)


class _Bugs(logging.Handler):
    """Raises what would only be logged."""

    def emit(self, record: logging.LogRecord) -> None:
        raise BrokenError(record.getMessage())


@contextmanager
def no_logged_bugs() -> Iterator[None]:
    """A profile that cannot be analyzed is left out; a bug must not hide behind that."""
    handler = _Bugs(logging.ERROR)
    logger().addHandler(handler)
    try:
        yield
    finally:
        logger().removeHandler(handler)
