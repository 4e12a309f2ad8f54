"""The plugin: its routes, and what each answers. See `catalogue`, `results` and `jobs`."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from tensorboard.plugins import base_plugin
from tensorboard.util import tb_logging
from werkzeug import wrappers

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.profile_tab import profile_target
from tb_perfadvisor.plugin.answers import (
    STATIC_DIRECTORY,
    ApiError,
    answer,
    answer_error,
    answer_static,
    is_cross_origin,
)
from tb_perfadvisor.plugin.catalogue import Catalogue, Entry
from tb_perfadvisor.plugin.naming import roots_of
from tb_perfadvisor.plugin.progress import started
from tb_perfadvisor.plugin.results import REPORT, VIEWS, Results, open_results

if TYPE_CHECKING:
    from tb_perfadvisor.engine.window import Window
    from tb_perfadvisor.plugin.doctor import Surroundings
    from tb_perfadvisor.report import Report

# Long enough for an ordinary local scan, so that a reload shows what was just recorded.
_SCAN_WAIT_S = 1.0
_DEFAULT_EVENTS = 2_000
_MAX_EVENTS = 20_000
# More than a table on a screen; each is an analysis that would have to run.
_MAX_COMPARED = 20
_FRAMEWORKS = {"kineto": "pytorch", "tf-tools": "tensorflow"}
# Type and extension of the downloads, where they differ from plain text.
_EXPORTS = {
    "json": ("application/json", "json"),
    "markdown": ("text/markdown; charset=utf-8", "md"),
    "html": ("text/html", "html"),
    "sarif": ("application/json", "sarif"),
    "text": ("text/plain", "txt"),
}


class PerfAdvisorPlugin(base_plugin.TBPlugin):  # type: ignore[misc] # TensorBoard has no types
    """Perf Advisor in TensorBoard."""

    plugin_name = "perf_advisor"

    def __init__(self, context: base_plugin.TBContext) -> None:
        """Keep what TensorBoard says; nothing is read or started here."""
        self._logdir = str(context.logdir or "")
        self._logdir_spec = str(getattr(context.flags, "logdir_spec", "") or "")
        self._plugins = context.plugin_name_to_instance
        self._catalogue = Catalogue(roots_of(self._logdir, self._logdir_spec))
        self._lock = threading.Lock()
        self._results: Results | None = None
        self._cache_problem: str | None = None
        self.static_directory = STATIC_DIRECTORY

    def start(self) -> None:
        """Begin the first scan of what is local, in the background."""
        self._catalogue.refresh_local()

    def close(self) -> None:
        """Stop all analyses. TensorBoard does not call it: they die with the process."""
        if self._results is not None:
            self._results.close()

    def is_active(self) -> bool:
        """Whether there is something to show; answers from memory and at once."""
        self._catalogue.refresh_local()
        return self._catalogue.is_active

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """The tab's name and module."""
        return base_plugin.FrontendMetadata(
            es_module_path="/static/index.js", tab_name="Perf Advisor"
        )

    def get_plugin_apps(self) -> dict[str, Callable[..., Any]]:
        """The routes below `data/plugin/perf_advisor`."""
        return {
            "/static/index.js": self._serve_static,
            "/static/*": self._serve_static,
            "/api/v1/*": self._serve_api,
        }

    @wrappers.Request.application  # type: ignore[arg-type] # it takes methods as well
    def _serve_static(self, request: wrappers.Request) -> wrappers.Response:
        try:
            _require(request, "GET", "HEAD")
            return answer_static(
                request, request.path.partition("/static/")[2], self.static_directory
            )
        except ApiError as error:
            return answer_error(request, error)

    @wrappers.Request.application  # type: ignore[arg-type] # it takes methods as well
    def _serve_api(self, request: wrappers.Request) -> wrappers.Response:
        try:
            return self._route(request)
        except ApiError as error:
            return answer_error(request, error)
        except PerfAdvisorError as error:
            return answer_error(request, error)
        except Exception as error:
            logger = tb_logging.get_logger()
            logger.warning("Perf Advisor failed at %s: %s", request.path, type(error).__name__)
            logger.debug("Perf Advisor failed", exc_info=True)
            hint = "TensorBoard's log has the details when it runs with --verbosity -1."
            failure = ApiError(500, f"something went wrong ({type(error).__name__}).", hint=hint)
            return answer_error(request, failure)

    def _route(self, request: wrappers.Request) -> wrappers.Response:
        parts = request.path.partition("/api/v1/")[2].strip("/").split("/")
        match parts:
            case ["captures", capture_id, "cancel"]:
                _require(request, "POST")
                if is_cross_origin(request):
                    raise ApiError(403, "another site may not do this.")
                return self._cancel(request, self._entry(capture_id))
            case _:
                _require(request, "GET", "HEAD")
        match parts:
            case ["captures"]:
                return self._captures(request)
            case ["captures", capture_id, "report"]:
                return self._report(request, self._entry(capture_id))
            case ["captures", capture_id, "views", view]:
                return self._view(request, self._entry(capture_id), view)
            case ["captures", capture_id, "window"]:
                return self._window(request, self._entry(capture_id))
            case ["captures", capture_id, "excerpt"]:
                return self._excerpt(request, self._entry(capture_id))
            case ["captures", capture_id, "export"]:
                return self._export(request, self._entry(capture_id))
            case ["compare"]:
                return self._compare(request)
            case ["rules"]:
                return self._rules(request)
            case ["rules", rule_id]:
                return self._rule(request, rule_id)
            case ["doctor"]:
                return self._doctor(request)
        raise ApiError(404, "there is no such address.", hint="Reload the page.")

    def _captures(self, request: wrappers.Request) -> wrappers.Response:
        self._catalogue.refresh(wait_s=_SCAN_WAIT_S)
        entries = self._catalogue.snapshot.entries.values()
        return answer(
            request, {"captures": [self._capture(entry) for entry in entries], **self._scan()}
        )

    def _scan(self) -> dict[str, Any]:
        snapshot = self._catalogue.snapshot
        problems = [
            {"path": problem.where, "reason": f"{problem.message} {problem.hint}".strip()}
            for problem in snapshot.problems
        ]
        rejected = [{"path": path, "reason": reason} for path, reason in snapshot.rejected]
        return {
            "rejected": problems + rejected,
            "scan": {
                # Not the path: a tunnel may have made this page public.
                "root": ", ".join(root.label for root in self._catalogue.roots),
                "scanned_files": snapshot.scanned_files,
                "is_complete": snapshot.is_complete,
                "gaps": snapshot.gaps,
                "is_scanning": self._catalogue.is_scanning,
            },
        }

    def _capture(self, entry: Entry) -> dict[str, Any]:
        results = self._open_results()
        summary = results.summary(entry)
        state = results.state(entry)
        if summary is not None:
            status = "done"
        else:
            status = "new" if state is None or state.status == "cancelled" else state.status
        files = entry.capture.files
        run, host = self._profile_target(entry)
        guess = _FRAMEWORKS.get(entry.capture.format, "unknown")
        return {
            "id": entry.id,
            "run": entry.run,
            "session": entry.capture.session,
            "framework": summary.framework if summary else guess,
            "format": entry.capture.format,
            "files": len(files),
            "size_bytes": sum(file.size_bytes for file in files),
            "status": status,
            "is_synthetic": summary.is_synthetic if summary else None,
            "headline": summary.headline if summary else None,
            "profile_run": run,
            "profile_host": host,
        }

    def _report(self, request: wrappers.Request, entry: Entry) -> wrappers.Response:
        results = self._open_results()
        content = results.read(entry, REPORT)
        if content is not None:
            return answer(request, content)
        return answer(request, started(results, entry, retry=_retry(request)), status=202)

    def _compare(self, request: wrappers.Request) -> wrappers.Response:
        from tb_perfadvisor.report.comparison import compare_facts, distinct_names

        bases, others = request.args.getlist("base"), request.args.getlist("target")
        ids = list(dict.fromkeys((*bases, *others)))
        if len(bases) != 1 or not 2 <= len(ids) <= _MAX_COMPARED + 1:
            hint = f"compare?base=ID&target=ID, with at most {_MAX_COMPARED} targets."
            raise ApiError(400, "a comparison needs one base and other captures.", hint=hint)
        results, entries = self._open_results(), [self._entry(one) for one in ids]
        found = [results.facts(entry) for entry in entries]
        ready = [facts for facts in found if facts is not None]
        if len(ready) < len(found):
            waiting = [
                {"id": entry.id, **started(results, entry, retry=_retry(request))}
                for entry, facts in zip(entries, found, strict=True)
                if facts is None
            ]
            return answer(request, {"captures": waiting}, status=202)
        # The tab knows runs by these names, however long.
        names = distinct_names(
            [(entry.run,) for entry in entries], [entry.capture.session for entry in entries]
        )
        base, *targets = (
            msgspec.structs.replace(facts, name=name)
            for facts, name in zip(ready, names, strict=True)
        )
        return answer(request, compare_facts(base, targets))

    def _cancel(self, request: wrappers.Request, entry: Entry) -> wrappers.Response:
        return answer(request, {"is_cancelled": self._open_results().cancel(entry)})

    def _view(self, request: wrappers.Request, entry: Entry, view: str) -> wrappers.Response:
        content = self._open_results().read(entry, VIEWS)
        if content is None:
            raise _not_analysed()
        views: dict[str, msgspec.Raw] = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        if view not in views:
            known = ", ".join(sorted(views)) or "none"
            raise ApiError(404, f"there is no view {view!r}.", hint=f"Views: {known}.")
        return answer(request, bytes(views[view]))

    def _window(self, request: wrappers.Request, entry: Entry) -> wrappers.Response:
        from tb_perfadvisor.engine.window import select

        window = self._kept_window(request, entry)
        from_ns, to_ns = _range(request, 0, window.duration_ns_total)
        max_events = min(_integer(request, "max_events", _DEFAULT_EVENTS, 1), _MAX_EVENTS)
        finding = _integer(request, "finding", -1, 0)
        return answer(
            request, select(window, from_ns, to_ns, max_events, finding if finding >= 0 else None)
        )

    def _excerpt(self, request: wrappers.Request, entry: Entry) -> wrappers.Response:
        """Events of the reference worker as a file that Perfetto opens."""
        from tb_perfadvisor.report.excerpt import evidence_range, make_excerpt

        window = self._kept_window(request, entry)
        report = self._kept_report(entry)
        place = _integer(request, "finding", -1, 0)
        if place >= len(report.findings):
            raise ApiError(
                404, "there is no such finding.", where=entry.run, hint="Reload the page."
            )
        whole = 0, window.duration_ns_total
        seen = evidence_range(report.findings[place], window, place) if place >= 0 else whole
        content = make_excerpt(
            report, window, place if place >= 0 else None, *_range(request, *seen)
        )
        rule = f"_{report.findings[place].rule_id}" if place >= 0 else ""
        return answer(
            request,
            content,
            content_type="application/gzip",
            headers=[_attachment(entry, f"{rule}.json.gz")],
        )

    def _kept_window(self, request: wrappers.Request, entry: Entry) -> Window:
        window = self._open_results().window(entry)
        if window is None:
            raise _not_analysed()
        worker = _integer(request, "worker", window.worker, 0)
        if worker != window.worker:
            raise ApiError(
                404,
                f"the events of worker {worker} are not kept.",
                hint=f"Those of worker {window.worker}, the reference worker, are.",
            )
        return window

    def _kept_report(self, entry: Entry) -> Report:
        from tb_perfadvisor.report import Report

        content = self._open_results().read(entry, REPORT)
        if content is None:
            raise _not_analysed()
        return msgspec.json.decode(content, type=Report)

    def _export(self, request: wrappers.Request, entry: Entry) -> wrappers.Response:
        from tb_perfadvisor.report import FORMATS, encode
        from tb_perfadvisor.report.views.timelines import make_timelines

        form = request.args.get("format", "json")
        if form not in FORMATS:
            known = ", ".join(sorted(FORMATS))
            raise ApiError(404, f"there is no export as {form!r}.", hint=f"Formats: {known}.")
        report, views = self._kept_report(entry), self._open_results().read(entry, VIEWS)
        if form == "html" and views is not None:
            own = msgspec.json.decode(views, type=dict[str, Any])
            if (window := self._open_results().window(entry)) is not None:
                own["timelines"] = make_timelines(report.findings, window)
            report = msgspec.structs.replace(report, views=own)
        text = encode(report, form)
        content_type, extension = _EXPORTS.get(form, ("text/plain", "txt"))
        headers = [_attachment(entry, f".{extension}")]
        return answer(request, text, content_type=content_type, headers=headers)

    def _rules(self, request: wrappers.Request) -> wrappers.Response:
        from tb_perfadvisor.rules.page import rule_summary
        from tb_perfadvisor.rules.registry import all_rules

        rules = [rule_summary(rule) for rule in all_rules()]
        return answer(request, {"rules": rules})

    def _rule(self, request: wrappers.Request, rule_id: str) -> wrappers.Response:
        from tb_perfadvisor.rules.page import rule_page
        from tb_perfadvisor.rules.registry import all_rules

        for rule in all_rules():
            if rule.id == rule_id:
                body = {"id": rule.id, "title": rule.title, "page": rule_page(rule)}
                return answer(request, body)
        raise ApiError(404, "there is no such rule.", where=rule_id)

    def _doctor(self, request: wrappers.Request) -> wrappers.Response:
        from tb_perfadvisor.plugin.doctor import diagnose

        self._catalogue.refresh(wait_s=_SCAN_WAIT_S)
        notes = [
            {
                "id": note.id,
                "severity": note.severity,
                "message": note.message,
                "remedy": note.remedy,
            }
            for note in diagnose(self._catalogue.snapshot, self._surroundings())
        ]
        self._open_results()
        if self._cache_problem:
            notes.append(
                {
                    "id": "cache-unwritable",
                    "severity": "info",
                    "message": self._cache_problem,
                    "remedy": "Set PERFADVISOR_CACHE_DIR to a directory that can be written.",
                }
            )
        return answer(request, {**self._scan(), "notes": notes})

    def _entry(self, capture_id: str) -> Entry:
        """The capture of an id: nothing but what a scan found can be named."""
        entry = self._catalogue.snapshot.entries.get(capture_id)
        if entry is None:
            # A link that someone was sent is opened before the first scan has ended.
            self._catalogue.refresh(wait_s=_SCAN_WAIT_S)
            entry = self._catalogue.snapshot.entries.get(capture_id)
        if entry is None:
            hint = "Reload to see what the log directory holds now."
            if self._catalogue.is_scanning:
                hint = "The log directory is still being scanned: try again in a moment."
            raise ApiError(404, "there is no such capture.", hint=hint)
        return entry

    def _open_results(self) -> Results:
        with self._lock:
            if self._results is None:
                self._results, self._cache_problem = open_results()
            return self._results

    def _surroundings(self) -> Surroundings:
        from tb_perfadvisor.plugin.doctor import Surroundings

        # Asked late: plugins that load after this one are in the mapping only now.
        has_profile = "profile" in (self._plugins or {})
        return Surroundings(self._logdir, self._catalogue.roots, has_profile)

    def _profile_target(self, entry: Entry) -> tuple[str | None, str | None]:
        from tb_perfadvisor.plugin.doctor import shows_in_profile_tab

        if entry.capture.format != "xplane" or not shows_in_profile_tab(self._surroundings()):
            return None, None
        return profile_target(entry.capture.files[0].path) or (None, None)


def _require(request: wrappers.Request, *methods: str) -> None:
    if request.method not in methods:
        raise ApiError(405, f"this address does not answer {request.method}.")


def _not_analysed() -> ApiError:
    hint = "Open its report first."
    return ApiError(409, "this capture has not been analysed yet.", hint=hint)


def _attachment(entry: Entry, ending: str) -> tuple[str, str]:
    """The header of a download, whose name no run's name can break out of."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{entry.run}_{entry.capture.session}").strip("._")
    return "Content-Disposition", f'attachment; filename="perf_advisor_{stem}{ending}"'


def _range(request: wrappers.Request, from_ns: int, to_ns: int) -> tuple[int, int]:
    """The times that a request names, else those given."""
    from_ns = _integer(request, "from_ns", from_ns, 0)
    to_ns = _integer(request, "to_ns", max(to_ns, from_ns + 1), 0)
    if to_ns <= from_ns:
        raise ApiError(400, "to_ns must be larger than from_ns.")
    return from_ns, to_ns


def _retry(request: wrappers.Request) -> bool:
    return request.args.get("retry") == "1"


def _integer(request: wrappers.Request, name: str, default: int, least: int) -> int:
    text = request.args.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or value > 2**62:
        raise ApiError(400, f"{name} must be a whole number from {least}.")
    return value
