"""Where XProf's Profile tab and Vertex AI's uploader look for profiles."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path, PurePosixPath

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.ingest.files.tree import FileEntry, file_entry, is_url
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import shell_path

_PROFILE_FILE = regex(
    r"(?:(?P<run>.+)/)?plugins/profile/(?P<session>[^/]+)/(?P<host>[^/]+)\.xplane\.pb",
    re.DOTALL,
)
# The tab's cache of the tools of a session; it is made again when the files change.
_TOOLS = ".cached_tools.json"
_MOST_BYTES_OF_TOOLS = 1 << 20
# How TensorFlow and JAX name sessions; Vertex AI's uploader sends no others.
_DATED = regex(r"\d{4}(?:_\d{2}){5}")


def profile_target(path: str) -> tuple[str, str] | None:
    """Run and host of a file as the Profile tab names them; None where it does not look.

    The path is relative to the logdir, with forward slashes.
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
    """The shell command that moves an xplane to where the Profile tab finds it.

    The root is the logdir, a local directory; the path is relative to it. `mtime_ns` is when the
    file was written, and becomes the session's name.
    """
    run, _, name = path.rpartition("/")
    session = time.strftime("%Y_%m_%d_%H_%M_%S", time.gmtime(mtime_ns // 10**9))
    target = f"{Path(root, run, 'plugins', 'profile', session).as_posix()}/"
    source = Path(root, run, name).as_posix()
    return f"mkdir -p {shell_path(target)} && mv {shell_path(source)} {shell_path(target)}"


def logdir_above(root: str, path: str) -> str | None:
    """The logdir that would show a file if the root lies inside `plugins/profile`."""
    whole = Path(os.path.abspath(root), path).as_posix()  # noqa: PTH100 - links stay as named
    match = _PROFILE_FILE.fullmatch(whole)
    return None if match is None or profile_target(path) else match["run"] or "/"


def is_writable(root: str, path: str) -> bool:
    """Whether the Profile tab can write its cache files beside a local file."""
    directory = Path(root, path).parent
    return not directory.is_dir() or os.access(directory, os.W_OK)


def remembers_no_tools(root: str, file: FileEntry) -> str | None:
    """The Profile tab's cache file of a session, relative to the root, if it lists no tools.

    The tab writes such a file if its converters are broken when it first looks at the session.
    None if the file lists tools or does not exist.
    """
    if is_url(root):
        return None
    cache = PurePosixPath(file.system_path).with_name(_TOOLS)
    try:
        with open_file(root, file_entry(str(cache), 0, 0, boundary=file.boundary)) as stream:
            content = json.loads(stream.read(_MOST_BYTES_OF_TOOLS))
    except (PerfAdvisorError, ValueError):
        return None
    is_empty = isinstance(content, dict) and content.get("tools") == []
    return cache.as_posix() if is_empty else None
