"""Where XProf's Profile tab, and what uploads for it, look for profiles."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from pathlib import Path

_PROFILE_FILE = re.compile(
    r"(?:(?P<run>.+)/)?plugins/profile/(?P<session>[^/]+)/(?P<host>[^/]+)\.xplane\.pb"
)
# Where it keeps which tools a session has; it looks again when the files change.
_TOOLS = ".cached_tools.json"
# What TensorFlow and JAX name a session; the uploader of Vertex AI sends no other.
_DATED = re.compile(r"\d{4}(?:_\d{2}){5}")


def profile_target(path: str) -> tuple[str, str] | None:
    """Run and host of a file as the Profile tab names them; None where it does not look.

    Args:
        path: Relative to the logdir, with forward slashes.
    """
    match = _PROFILE_FILE.fullmatch(path)
    if match is None:
        return None
    run, session = match["run"], match["session"]
    return (f"{run}/{session}" if run else session), match["host"]


def is_dated(session: str) -> bool:
    """Whether a session is named by the time of its recording."""
    return _DATED.fullmatch(session) is not None


def move_into_session(root: str, path: str, mtime_ns: int) -> str:
    """The shell's command that puts an xplane where the Profile tab finds it.

    Args:
        root: The logdir, a local directory.
        path: Of the file, relative to it.
        mtime_ns: When it was written, which names the session.
    """
    run, _, name = path.rpartition("/")
    session = time.strftime("%Y_%m_%d_%H_%M_%S", time.gmtime(mtime_ns // 10**9))
    target = f"{Path(root, run, 'plugins', 'profile', session).as_posix()}/"
    source = Path(root, run, name).as_posix()
    return f"mkdir -p {shlex.quote(target)} && mv {shlex.quote(source)} {shlex.quote(target)}"


def logdir_above(root: str, path: str) -> str | None:
    """The logdir that would show a file, when the root lies within `plugins/profile` itself."""
    whole = Path(os.path.abspath(root), path).as_posix()  # noqa: PTH100 - links stay as named
    match = _PROFILE_FILE.fullmatch(whole)
    return None if match is None or profile_target(path) else match["run"] or "/"


def is_writable(root: str, path: str) -> bool:
    """Whether the Profile tab could keep its files beside a local one."""
    directory = Path(root, path).parent
    return not directory.is_dir() or os.access(directory, os.W_OK)


def remembers_no_tools(root: str, path: str) -> str | None:
    """The file, relative to the root, in which the Profile tab keeps that a session has no tools.

    It does so when its converters were broken as it first looked; None when it keeps tools, or
    has not looked yet.
    """
    kept = Path(path).with_name(_TOOLS)
    try:
        found = json.loads(Path(root, kept).read_bytes())
    except (OSError, ValueError):
        return None
    is_empty = isinstance(found, dict) and found.get("tools") == []
    return kept.as_posix() if is_empty else None
