"""Runs one analysis in a worker's process: `python -m tb_perfadvisor.plugin.worker`.

Reads the capture from `capture.json` in the output directory, so that the log directory need not
be listed again, and replaces it by the files below. Writes progress and errors as lines of JSON to
stderr. Its status is 0, or 2 after an error. Does not import TensorBoard.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from tb_perfadvisor.execution.execution import say, throttled

CAPTURE = "capture.json"
REPORT = "report.json"
VIEWS = "views.json"
WINDOW = "window.npz"
ROW = "row.json"
"""What the list of captures shows."""
FACTS = "facts.json"
"""What comparisons need."""
CHANGES = "changes.bin"
"""What decides how much several changes save together."""
DOCUMENT = "document"
"""What is made of results, on request."""
REQUEST = "request.json"
EXIT_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Analyze one capture, and return the exit status."""
    options = _options(arguments)
    return run_job(partial(_analyze, options), options)


def run_job(job: Callable[[], None], options: argparse.Namespace) -> int:
    """Run a job of TensorBoard's; report an error as a line of JSON.

    Returns the exit status.
    """
    try:
        job()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        say({"error": _describe(error, options)})
        return EXIT_ERROR
    return 0


def parser_of_options(module: str) -> argparse.ArgumentParser:
    """A parser of the options that every job has."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--output", required=True, type=Path, help="has the input, gets the output")
    return parser


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of_options("tb_perfadvisor.plugin.worker")
    parser.add_argument(
        "--root", required=True, help="the directory that paths in the capture are relative to"
    )
    parser.add_argument("--report-id", help="the report's id, if not the capture's")
    parser.add_argument("--group", default="", help="a prefix for the name of the run")
    return parser.parse_args(arguments)


_NEEDED_BY_MOST = (
    "tb_perfadvisor.api.comparisons",
    "tb_perfadvisor.comparison.run_facts",
    "tb_perfadvisor.engine.change_model",
    "tb_perfadvisor.ingest.kineto.reader",
    "tb_perfadvisor.report.timeline.collect_events",
)


def warm_up() -> None:
    """Import what analyses and documents need."""
    for module in _NEEDED_BY_MOST:
        import_module(module)
    from tb_perfadvisor.report.views import views_type
    from tb_perfadvisor.rules.registry import builtin_rules

    builtin_rules()
    views_type()


def _analyze(options: argparse.Namespace) -> None:
    say({"stage": "starting", "progress": None})
    import msgspec

    from tb_perfadvisor.api.analyses import analyze_capture
    from tb_perfadvisor.comparison.interval import pace_of
    from tb_perfadvisor.comparison.run_facts import make_facts
    from tb_perfadvisor.contract.names import run_row
    from tb_perfadvisor.engine.change_model import change_model, encode_model
    from tb_perfadvisor.engine.config import Config
    from tb_perfadvisor.error_log import write_error_log
    from tb_perfadvisor.execution import open_execution
    from tb_perfadvisor.ingest.captures import Capture
    from tb_perfadvisor.plugin.log_directories import grouped_run
    from tb_perfadvisor.report.build import build_report
    from tb_perfadvisor.report.timeline.collect_events import collect_events
    from tb_perfadvisor.report.timeline.window import encode_events

    write_error_log()
    listed = options.output / CAPTURE
    capture = msgspec.json.decode(listed.read_bytes(), type=Capture)
    listed.unlink()
    config, progress = Config(with_views=True), throttled(say)
    with open_execution(file.size_bytes for file in capture.files) as execution:
        analysis = analyze_capture(options.root, capture, config, progress, execution=execution)
    report = build_report(analysis, config, progress)
    report = msgspec.structs.replace(
        report,
        id=options.report_id or report.id,
        run=grouped_run(options.group, report.run),
    )
    facts = make_facts(analysis, report)
    say({"stage": "saving", "progress": 1.0})
    views, report = report.views, msgspec.structs.replace(report, views=None)
    events = collect_events(analysis.signals, [ranked.claims for ranked in analysis.findings])
    for name, content in (
        (REPORT, msgspec.json.encode(report)),
        (VIEWS, msgspec.json.encode(views or {})),
        (WINDOW, encode_events(events)),
        (ROW, msgspec.json.encode({"row": run_row(report), "pace": pace_of(facts)})),
        (FACTS, msgspec.json.encode(facts)),
        (CHANGES, encode_model(change_model(analysis))),
    ):
        (options.output / name).write_bytes(content)


def _describe(error: Exception, options: argparse.Namespace) -> dict[str, str]:
    """Describe an error to the user, with paths relative to the logdir; log a bug."""
    from tb_perfadvisor.error_log import write_error_log
    from tb_perfadvisor.errors import OutOfMemoryError, UnexpectedError, contained, log_bug
    from tb_perfadvisor.plain_text import printable_name

    shown = contained(error)
    kind = "input"
    if isinstance(shown, OutOfMemoryError):
        kind = "memory"
    elif isinstance(shown, UnexpectedError):
        kind = "crash"
    log = write_error_log()
    log_bug(shown)
    where = printable_name(shown.where.removeprefix(getattr(options, "root", "")).lstrip("/\\"))
    return {
        "kind": kind,
        "message": shown.message,
        "where": where,
        "hint": shown.hint,
        "log": str(log.path or ""),
    }


if __name__ == "__main__":
    sys.exit(main())
