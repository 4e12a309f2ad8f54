"""Finds out why the tab or the Profile tab may show less than expected."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tb_perfadvisor.environment import profile_plugin_notes, recording_notes
from tb_perfadvisor.ingest.formats import format_of
from tb_perfadvisor.ingest.profile_tab import (
    is_writable,
    logdir_above,
    move_into_session,
    profile_target,
    remembers_no_tools,
)
from tb_perfadvisor.ingest.xspace.reader import check_integrity
from tb_perfadvisor.note import Note
from tb_perfadvisor.plain_text import printable_name, shell_path
from tb_perfadvisor.plugin.catalog import Entry, Snapshot
from tb_perfadvisor.plugin.log_directories import Surroundings

_NAMED = 3
# Checking more would take too long.
_MAX_CHECKED = 500


def diagnose(snapshot: Snapshot, surroundings: Surroundings) -> list[Note]:
    """Notes on the log directories, the Profile tab and this machine.

    They contain only paths relative to the log directory, as a tunnel may make the page public.
    """
    notes = [
        Note("logdir-unreadable", "error", f"{problem.where}: {problem.message}", problem.hint)
        for problem in snapshot.problems
    ]
    if not surroundings.roots:
        notes.append(
            Note(
                "no-logdir",
                "error",
                "TensorBoard was started without a log directory.",
                "Start it with --logdir.",
            )
        )
    elif not snapshot.is_complete and not snapshot.problems:
        notes.append(
            Note(
                "scan-incomplete",
                "warning",
                f"The scan of the log directory is incomplete, after {snapshot.scanned_files:,} "
                f"files: {'; '.join(snapshot.gaps) or 'it is too large'}.",
                "Start TensorBoard with a --logdir closer to the profiles.",
            )
        )
    if surroundings.roots and snapshot.is_complete and not snapshot.entries:
        notes.append(
            Note(
                "no-profiles",
                "warning",
                _no_profile(snapshot.scanned_files),
                "Record one: torch.profiler with tensorboard_trace_handler(LOGDIR), the Keras "
                "TensorBoard callback with profile_batch, or jax.profiler.trace(LOGDIR).",
            )
        )
    entries = list(snapshot.entries.values())
    xplanes = [e for e in entries if format_of(e.capture.format).is_read_by_profile_tab]
    exports = [e for e in entries if format_of(e.capture.format).is_export]
    notes += [*_broken(xplanes), *_exports(exports, surroundings)]
    notes += _profile_tab(xplanes, surroundings) if xplanes else []
    return [*notes, *recording_notes()]


def _no_profile(files: int) -> str:
    if files == 0:
        return "The log directory holds no files."
    return f"None of the {files:,} files is a profile." if files > 1 else "The file is no profile."


def _profile_tab(xplanes: list[Entry], surroundings: Surroundings) -> list[Note]:
    notes = profile_plugin_notes(is_loaded=surroundings.has_profile_plugin)
    if not surroundings.has_profile_plugin:
        return notes
    if not surroundings.logdir:
        notes.append(
            Note(
                "profile-tab-logdir-spec",
                "warning",
                "With --logdir_spec the Profile tab shows no runs; this tab does.",
                "Start TensorBoard with --logdir and a directory above all runs.",
            )
        )
    elif surroundings.logdir.startswith("~"):
        notes.append(
            Note(
                "profile-tab-tilde",
                "warning",
                "The Profile tab does not expand ~ in --logdir and shows no runs; this tab does.",
                "Start TensorBoard with the full path.",
            )
        )
    notes += _layout([e for e in xplanes if not _is_in_session(e)])
    locked = [e.run for e in xplanes if _is_in_session(e) and _is_read_only(e)]
    if locked:
        notes.append(
            Note(
                "profile-tab-read-only",
                "info",
                f"The sessions of {_some(locked)} are read-only. The Profile tab writes files "
                "there and may look empty; this tab does not.",
                "Copy the session to a writable directory.",
            )
        )
    return [*notes, *_remembered(xplanes)]


def _layout(outside: list[Entry]) -> list[Note]:
    """Files in folders that the Profile tab does not read, with commands that move them."""
    if not outside:
        return []
    files = [(e, file) for e in outside for file in e.capture.files]
    local = [(e, file) for e, file in files if not e.root.is_remote]
    above = any(logdir_above(e.base, file.path) for e, file in local)
    commands = [
        move_into_session("", file.system_path, file.mtime_ns) for _, file in local[:_NAMED]
    ]
    if above:
        remedy = "Start TensorBoard with a --logdir above `plugins/profile`."
    elif commands:
        remedy = f"In the log directory: `{'; '.join(commands)}`"
    else:
        remedy = "Copy them to RUN/plugins/profile/SESSION/."
    message = (
        f"The Profile tab does not see {_some(file.path for _, file in files)}: it reads only "
        "plugins/profile/SESSION/ in a run."
    )
    return [Note("profile-tab-layout", "info", message, remedy)]


def _remembered(xplanes: list[Entry]) -> list[Note]:
    markers = [
        path
        for e in xplanes[:_MAX_CHECKED]
        if not e.root.is_remote and (path := remembers_no_tools(e.base, e.capture.files[0]))
    ]
    if not markers:
        return []
    folders = _some(printable_name(str(Path(path).parent)) for path in markers)
    runs = f"The Profile tab shows no tools of {folders}"
    remedy = f"In the log directory: `rm {' '.join(map(shell_path, markers[:_NAMED]))}`"
    return [
        Note(
            "profile-tab-remembers",
            "warning",
            f"{runs}, because it cached that there are none.",
            remedy,
        )
    ]


def _broken(xplanes: list[Entry]) -> list[Note]:
    """XPlane files that are truncated or are something else."""
    files = [(e, file) for e in xplanes if not e.root.is_remote for file in e.capture.files]
    return [
        Note("xplane-broken", "error", f"`{file.path}` is damaged: {integrity.broken}", "")
        for e, file in files[:_MAX_CHECKED]
        if (integrity := check_integrity(e.base, file)).broken
    ][:_NAMED]


def _exports(exports: list[Entry], surroundings: Surroundings) -> list[Note]:
    paths = [e.capture.files[0].path for e in exports]
    # Nobody expects the Profile tab to read files in other folders.
    hidden = [path for path in paths if "plugins/profile/" in path]
    if not hidden or not surroundings.has_profile_plugin:
        return []
    return [
        Note(
            "profile-tab-exports",
            "info",
            f"The Profile tab does not show {_some(hidden)}: it reads only .xplane.pb files. "
            "This tab does.",
            "Keep the .xplane.pb file, which profilers write beside the export.",
        )
    ]


def _is_in_session(entry: Entry) -> bool:
    return profile_target(entry.capture.files[0].path) is not None


def _is_read_only(entry: Entry) -> bool:
    return not entry.root.is_remote and not is_writable(
        entry.base, entry.capture.files[0].system_path
    )


def _some(names: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - _NAMED} more" if len(distinct) > _NAMED else ""
    return ", ".join(distinct[:_NAMED]) + more
