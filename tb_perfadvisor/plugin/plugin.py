"""The plugin class, and the table of its routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorboard.plugins import base_plugin
from werkzeug import wrappers

from tb_perfadvisor.errors import PerfAdvisorError, UnexpectedError
from tb_perfadvisor.plugin.backend import Backend
from tb_perfadvisor.plugin.imports import import_whole
from tb_perfadvisor.plugin.log import report_bug
from tb_perfadvisor.plugin.origins import require_known_host, require_same_origin
from tb_perfadvisor.plugin.responses import (
    STATIC_DIRECTORY,
    ApiError,
    NotReady,
    bundle_address,
    respond,
    respond_error,
    respond_file,
)
from tb_perfadvisor.plugin.routes import listing


class PerfAdvisorPlugin(base_plugin.TBPlugin):  # type: ignore[misc] # TensorBoard has no types
    """Perf Advisor in TensorBoard."""

    plugin_name = "perf_advisor"

    def __init__(self, context: base_plugin.TBContext) -> None:
        """Create the plugin without reading or starting anything."""
        self.backend = Backend(context)
        self.static_directory = STATIC_DIRECTORY

    def start(self) -> None:
        """Start the first scan of local log directories in the background."""
        self.backend.catalog.refresh_local()

    def close(self) -> None:
        """Stop all analyses. TensorBoard does not call this; they end with its process."""
        self.backend.close()

    def is_active(self) -> bool:
        """Whether there is something to show; answers at once, from memory."""
        self.backend.catalog.refresh_local()
        return self.backend.catalog.is_active

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        """The tab's name and module."""
        return base_plugin.FrontendMetadata(
            es_module_path=bundle_address(self.static_directory), tab_name="Perf Advisor"
        )

    def get_plugin_apps(self) -> dict[str, Callable[..., Any]]:
        """The routes below `data/plugin/perf_advisor`."""
        return {
            "/static/index.js": self._serve_static,
            "/static/*": self._serve_static,
            "/api/v1/*": self._serve_api,
        }

    @wrappers.Request.application  # type: ignore[arg-type] # it also accepts methods
    def _serve_static(self, request: wrappers.Request) -> wrappers.Response:
        try:
            _require(request, "GET", "HEAD")
            return respond_file(
                request, request.path.partition("/static/")[2], self.static_directory
            )
        except ApiError as error:
            return respond_error(request, error)

    @wrappers.Request.application  # type: ignore[arg-type] # it also accepts methods
    def _serve_api(self, request: wrappers.Request) -> wrappers.Response:
        try:
            return _route(request, self.backend)
        except NotReady as making:
            return respond(request, making.progress, status=202)
        except ApiError as error:
            return respond_error(request, error)
        except PerfAdvisorError as error:
            return respond_error(request, error)
        except Exception as error:
            bug = UnexpectedError(error, what="the request failed")
            report_bug(bug)
            return respond_error(request, bug, status=500)


_SHARED = ("tb_perfadvisor.trace", "tb_perfadvisor.contract.model")


def _route(request: wrappers.Request, backend: Backend) -> wrappers.Response:
    parts = request.path.partition("/api/v1/")[2].strip("/").split("/")
    if parts[0] == "captures" and len(parts) > 2:
        return _route_of_capture(request, backend, parts)
    if parts == ["record"]:
        _require(request, "POST")
        require_same_origin(request)
        return listing.record(request, backend)
    _require(request, "GET", "HEAD")
    match parts:
        case ["captures"]:
            return listing.captures(request, backend)
        case ["rejected"]:
            return listing.rejected(request, backend)
        case ["marks"]:
            return listing.marks(request, backend)
        case ["doctor"]:
            return listing.doctor(request, backend)
    # The list of captures needs none of these.
    import_whole(*_SHARED)
    from tb_perfadvisor.plugin.routes import documents

    match parts:
        case ["notes"]:
            return documents.settings(request, backend)
        case ["compare"]:
            return documents.compare(request, backend)
        case ["rules"]:
            return documents.rules(request)
        case ["rules", rule_id]:
            return documents.rule(request, rule_id)
    raise _no_route()


def _route_of_capture(
    request: wrappers.Request, backend: Backend, parts: list[str]
) -> wrappers.Response:
    import_whole(*_SHARED)
    from tb_perfadvisor.plugin.routes import analyses, documents

    match parts:
        case ["captures", capture_id, "cancel"]:
            _require(request, "POST")
            require_known_host(request, backend.write_hosts)
            return analyses.cancel(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "note"]:
            _require(request, "POST")
            require_same_origin(request)
            return documents.write(request, backend, backend.entry(capture_id))
        case _:
            _require(request, "GET", "HEAD")
    match parts:
        case ["captures", capture_id, "report"]:
            return analyses.report(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "row"]:
            return analyses.row(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "views", view]:
            return analyses.view(request, backend, backend.entry(capture_id), view)
        case ["captures", capture_id, "combination"]:
            return analyses.combination(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "patches"]:
            return analyses.patches(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "training"]:
            return documents.training(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "history"]:
            return documents.history(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "window"]:
            return analyses.window(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "event"]:
            return analyses.event(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "search"]:
            return analyses.search(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "sums"]:
            return analyses.sums(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "path"]:
            return analyses.path(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "excerpt"]:
            return analyses.excerpt(request, backend, backend.entry(capture_id))
        case ["captures", capture_id, "export"]:
            return documents.export(request, backend, backend.entry(capture_id))
    raise _no_route()


def _no_route() -> ApiError:
    return ApiError(404, "there is no such route.", hint="Reload the page.")


def _require(request: wrappers.Request, *methods: str) -> None:
    if request.method not in methods:
        raise ApiError(405, f"this route does not support {request.method}.")
