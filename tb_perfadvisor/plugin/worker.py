"""One analysis in a process of its own: `python -m tb_perfadvisor.plugin.worker`.

Takes the capture as it was listed from `capture.json` in a directory, so that the log directory
is not listed again, and writes `report.json`, `views.json`, `window.npz`, `summary.json` and
`facts.json` (for comparisons) in its place. Says how far it is, and what went wrong, as lines of
JSON on stderr; exits with 0, or 2 after an error. Imports no TensorBoard.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CAPTURE = "capture.json"
EXIT_ERROR = 2
_EXIT_ORPHANED = 3
_PROGRESS_INTERVAL_S = 0.1
# Reading takes the larger part of an analysis; a bar that starts anew after it would lie.
_READING_SHARE = 0.7


def main(arguments: Sequence[str] | None = None) -> int:
    """Analyze one capture.

    Args:
        arguments: Of the command line; the process's own by default.

    Returns:
        The exit status.
    """
    options = _options(arguments)
    if options.watch_stdin:
        threading.Thread(target=_die_with_parent, daemon=True).start()
    limit_memory(options.memory_limit_bytes)
    try:
        _analyze(options)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        traceback.print_exc()
        _say({"error": _describe(error, options)})
        return EXIT_ERROR
    return 0


def limit_memory(limit_bytes: int) -> None:
    """Bound the address space of this process and of each that it starts; 0 is no bound."""
    if limit_bytes <= 0:
        return
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            limit_bytes = min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))
    except (ImportError, OSError, ValueError, AttributeError):
        # Windows has no such module, macOS refuses the call: the time limit must do there.
        return


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tb_perfadvisor.plugin.worker")
    parser.add_argument("--root", required=True, help="what the capture's paths are relative to")
    parser.add_argument(
        "--output", required=True, type=Path, help=f"a directory that holds {CAPTURE}"
    )
    parser.add_argument("--report-id", help="the report's id, if not the capture's")
    parser.add_argument("--group", default="", help="put before the run's name")
    parser.add_argument("--memory-limit-bytes", type=int, default=0)
    parser.add_argument("--watch-stdin", action="store_true", help="exit when stdin closes")
    return parser.parse_args(arguments)


def _analyze(options: argparse.Namespace) -> None:
    _say({"stage": "starting", "progress": None})
    import msgspec

    from tb_perfadvisor.api import analyze_capture
    from tb_perfadvisor.engine.config import Config
    from tb_perfadvisor.execution import open_execution
    from tb_perfadvisor.ingest.discovery import Capture
    from tb_perfadvisor.plugin.naming import grouped_run
    from tb_perfadvisor.report import build_report
    from tb_perfadvisor.report.comparison import make_facts
    from tb_perfadvisor.report.timeline.stored_events import collect_events, encode_events

    listed = options.output / CAPTURE
    capture = msgspec.json.decode(listed.read_bytes(), type=Capture)
    listed.unlink()
    config, progress = Config(with_views=True), _throttled(_say)
    with open_execution(file.size_bytes for file in capture.files) as execution:
        analysis = analyze_capture(options.root, capture, config, progress, execution=execution)
    report = build_report(analysis, config, progress)
    report = msgspec.structs.replace(
        report,
        id=options.report_id or report.id,
        run=grouped_run(options.group, report.run),
    )
    facts = make_facts(analysis, report)
    _say({"stage": "saving", "progress": 1.0})
    views, report = report.views, msgspec.structs.replace(report, views=None)
    events = collect_events(
        analysis.signals.trace,
        report.reference_worker,
        [ranked.claims for ranked in analysis.findings],
    )
    summary = {
        "headline": report.headline,
        "framework": report.framework,
        "is_synthetic": report.is_synthetic,
    }
    for name, content in (
        ("report.json", msgspec.json.encode(report)),
        ("views.json", msgspec.json.encode(views or {})),
        ("window.npz", encode_events(events)),
        ("summary.json", msgspec.json.encode(summary)),
        ("facts.json", msgspec.json.encode(facts)),
    ):
        (options.output / name).write_bytes(content)


def _describe(error: Exception, options: argparse.Namespace) -> dict[str, str]:
    """The error in words for a user; paths stay relative to the logdir."""
    from tb_perfadvisor.errors import PerfAdvisorError

    if isinstance(error, PerfAdvisorError):
        where = error.where.removeprefix(options.root).lstrip("/\\")
        return {"kind": "input", "message": error.message, "where": where, "hint": error.hint}
    if isinstance(error, MemoryError):
        return {"kind": "memory", "message": "", "where": "", "hint": ""}
    return {
        "kind": "crash",
        "message": f"the analysis failed ({type(error).__name__}).",
        "where": "",
        "hint": "TensorBoard's log has the details when it runs with --verbosity -1. Please "
        "report this as a bug of tb_perfadvisor.",
    }


def _throttled(say: Callable[[dict[str, Any]], None]) -> Callable[[str, float], None]:
    """A progress callback that speaks at most a few times a second, and at each new stage.

    The engine counts reading and analyzing each from 0 to 1; here they are one whole.
    """
    last = ("", 0.0)

    def tell(stage: str, share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if stage != last[0] or now - last[1] > _PROGRESS_INTERVAL_S:
            last = (stage, now)
            if stage.startswith("read"):
                whole = _READING_SHARE * share
            else:
                whole = _READING_SHARE + (1 - _READING_SHARE) * share
            say({"stage": stage, "progress": round(whole, 3)})

    return tell


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), file=sys.stderr, flush=True)


def _die_with_parent() -> None:
    """End at once when the parent does: its end of the pipe closes, however it died."""
    # os.read, not sys.stdin: a buffered reader's lock would break a normal exit.
    while True:
        try:
            if not os.read(0, 1):
                break
        except OSError:
            break
    os._exit(_EXIT_ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
