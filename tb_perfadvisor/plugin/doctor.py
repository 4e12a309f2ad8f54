"""Why the tab, or the Profile tab beside it, may show less than someone expects."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from tb_perfadvisor.ingest.profile_tab import is_writable, profile_target
from tb_perfadvisor.plugin.catalogue import Entry, Snapshot
from tb_perfadvisor.plugin.naming import Root
from tb_perfadvisor.trace import Note

_NAMED = 3


class Surroundings(Struct, frozen=True):
    """How TensorBoard was started."""

    logdir: str
    """As given."""
    roots: tuple[Root, ...]
    has_profile_plugin: bool


def diagnose(snapshot: Snapshot, surroundings: Surroundings) -> list[Note]:
    """Notes on the log directories and on what the Profile tab makes of them."""
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
                f"The log directory was not looked at to its end ({snapshot.scanned_files:,} files "
                f"were): {'; '.join(snapshot.gaps) or 'it is too large'}.",
                "Start TensorBoard with a --logdir nearer to the profiles.",
            )
        )
    if surroundings.roots and snapshot.is_complete and not snapshot.entries:
        notes.append(
            Note(
                "no-profiles",
                "warning",
                f"None of {snapshot.scanned_files:,} files is a profile.",
                "Record one: torch.profiler with tensorboard_trace_handler(LOGDIR), the "
                "TensorBoard callback of Keras with profile_batch, or jax.profiler.trace(LOGDIR).",
            )
        )
    xplanes = [e for e in snapshot.entries.values() if e.capture.format == "xplane"]
    exports = [e for e in snapshot.entries.values() if e.capture.format == "chrome"]
    notes += _exports(exports, surroundings)
    return notes + (_profile_tab(xplanes, surroundings) if xplanes else [])


def shows_in_profile_tab(surroundings: Surroundings) -> bool:
    """Whether the Profile tab finds any run: it reads the plain, unexpanded --logdir alone."""
    logdir = surroundings.logdir
    return surroundings.has_profile_plugin and bool(logdir) and not logdir.startswith("~")


def _profile_tab(xplanes: list[Entry], surroundings: Surroundings) -> list[Note]:
    notes = []
    if not surroundings.has_profile_plugin:
        notes.append(
            Note(
                "profile-plugin-missing",
                "info",
                "The Profile tab is not installed, or failed to load: findings have no links "
                "into it. Everything else works.",
                "pip install tensorboard-plugin-profile",
            )
        )
    elif not surroundings.logdir:
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
    outside = [e.capture.files[0].path for e in xplanes if not _is_in_session(e)]
    if outside:
        notes.append(
            Note(
                "profile-tab-layout",
                "info",
                f"The Profile tab does not see {_some(outside)}: it looks only into "
                "plugins/profile/SESSION/ of a run.",
                "Move the file: mkdir -p RUN/plugins/profile/SESSION and mv it there.",
            )
        )
    locked = [e.run for e in xplanes if _is_in_session(e) and _is_read_only(e)]
    if locked and surroundings.has_profile_plugin:
        notes.append(
            Note(
                "profile-tab-read-only",
                "info",
                f"The sessions of {_some(locked)} cannot be written to: the Profile tab keeps "
                "files there and may look empty. This tab writes nothing there.",
                "Copy the session to a directory that you may write to.",
            )
        )
    return notes


def _exports(exports: list[Entry], surroundings: Surroundings) -> list[Note]:
    paths = [e.capture.files[0].path for e in exports]
    # Elsewhere nobody expects the Profile tab to look.
    hidden = [path for path in paths if "plugins/profile/" in path]
    if not hidden or not surroundings.has_profile_plugin:
        return []
    return [
        Note(
            "profile-tab-exports",
            "info",
            f"The Profile tab does not show {_some(hidden)}: it reads .xplane.pb files alone. "
            "This tab does.",
            "Keep the .xplane.pb of a session, which profilers write beside its export.",
        )
    ]


def _is_in_session(entry: Entry) -> bool:
    return profile_target(entry.capture.files[0].path) is not None


def _is_read_only(entry: Entry) -> bool:
    return not entry.root.is_remote and not is_writable(
        entry.root.path, entry.capture.files[0].path
    )


def _some(names: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - _NAMED} more" if len(distinct) > _NAMED else ""
    return ", ".join(distinct[:_NAMED]) + more
