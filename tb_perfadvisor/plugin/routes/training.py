"""The route of a whole run, by its scalars."""

from __future__ import annotations

import math

from werkzeug import wrappers

from tb_perfadvisor.plugin.backend import Backend
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.progress import ensure_view_started
from tb_perfadvisor.plugin.responses import ApiError, optional_integer, respond
from tb_perfadvisor.plugin.results import Results
from tb_perfadvisor.plugin.whole_runs import RunProfile, WholeRun
from tb_perfadvisor.training.training import RunOptions
from tb_perfadvisor.units import LARGEST_SETTING


def training(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """The view of the run that a capture belongs to, or the progress of reading its scalars."""
    if not entry.candidates.runs:
        hint = "Log scalars with TensorBoard's SummaryWriter into the directory of the profile."
        raise ApiError(404, "the run of this profile has no event files.", hint=hint)
    results = backend.results()
    wanted = wanted_run(request, backend, entry)
    content = results.whole_run(wanted)
    if content is not None:
        return respond(request, content)
    return respond(request, ensure_view_started(request, results, wanted), status=202)


def wanted_run(request: wrappers.Request, backend: Backend, entry: Entry) -> WholeRun:
    """The view of the run that a capture belongs to, with what the request says about the run.

    The request may say what a device costs, and where the run ends.
    """
    results, candidates = backend.results(), entry.candidates
    profiles = tuple(
        _profile(results, other)
        for other in backend.catalog.snapshot.entries.values()
        if other.candidates.runs == candidates.runs or other.candidates.certain in candidates.runs
    )
    return WholeRun(entry.run, entry.root.group, candidates, entry.id, profiles, _options(request))


def _profile(results: Results, entry: Entry) -> RunProfile:
    certain = entry.candidates.certain.run if entry.candidates.certain is not None else None
    if results.has(entry.key):
        return RunProfile(entry.id, entry.run, entry.capture.session, certain, entry.key)
    state = results.state(entry)
    failure = state.failure if state is not None else None
    problem = f"Not read: {failure.message}" if failure is not None else ""
    return RunProfile(entry.id, entry.run, entry.capture.session, certain, "", problem)


def _options(request: wrappers.Request) -> RunOptions:
    price = None
    if text := request.args.get("price_per_device_hour"):
        try:
            price = float(text)
        except ValueError:
            price = math.nan
        if not 0 < price <= LARGEST_SETTING:
            raise ApiError(400, "price_per_device_hour must be a number above 0.")
    return RunOptions(price, optional_integer(request, "total_steps"))
