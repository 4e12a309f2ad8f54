"""Query parameters, and the file names of downloads."""

from __future__ import annotations

import re

from werkzeug import wrappers

from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.responses import ApiError


def integer(request: wrappers.Request, name: str, default: int, least: int) -> int:
    """A whole number from the query.

    Raises:
        ApiError: If it is not a whole number or less than `least`.
    """
    text = request.args.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or value > 2**62:
        raise ApiError(400, f"{name} must be a whole number of at least {least}.")
    return value


def optional_integer(request: wrappers.Request, name: str) -> int | None:
    """A whole number of at least 0 from the query; None if it is not there.

    Raises:
        ApiError: If it is not a whole number of at least 0.
    """
    return integer(request, name, 0, 0) if name in request.args else None


def time_range(request: wrappers.Request, from_ns: int, to_ns: int) -> tuple[int, int]:
    """The range of time in the query, by default the one given.

    Raises:
        ApiError: If it is empty.
    """
    from_ns = integer(request, "from_ns", from_ns, 0)
    to_ns = integer(request, "to_ns", max(to_ns, from_ns + 1), 0)
    if to_ns <= from_ns:
        raise ApiError(400, "to_ns must be larger than from_ns.")
    return from_ns, to_ns


def attachment(entry: Entry, ending: str) -> tuple[str, str]:
    """The header that names a download, with safe characters only."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{entry.run}_{entry.capture.session}").strip("._")
    return "Content-Disposition", f'attachment; filename="perf_advisor_{stem}{ending}"'
