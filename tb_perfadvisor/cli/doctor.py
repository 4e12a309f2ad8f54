"""`perfadvisor doctor`: why the tabs show what they show, or nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tb_perfadvisor.cli.help import Argument, Command
from tb_perfadvisor.cli.terminal import EXIT_USAGE, printing, show_progress, terminal

if TYPE_CHECKING:
    from tb_perfadvisor.ingest.captures import Capture, Listing, ProfileFile
    from tb_perfadvisor.note import Note

# Of many similar files, list only the first.
_MAX_FILES = 4
_MOST_LISTED = 20
"""Captures, and files that were not used; more are no list to read."""
_BROKEN = "broken: "
_NO_TOOLS = "Profile tab: shows no tools, because it cached an empty list. To make it look again:"
_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}


@click.command(cls=Command)
@click.argument("path", cls=Argument, help="A logdir, as passed to TensorBoard, or one file.")
@click.option("--all", "lists_all", is_flag=True, help="List all captures and all unused files.")
def doctor(path: str, lists_all: bool) -> None:
    """Show what was found below PATH, what was not used and why, and problems around it."""
    from rich.text import Text

    from tb_perfadvisor.environment import environment_notes
    from tb_perfadvisor.ingest.discovery import discover
    from tb_perfadvisor.ingest.formats import format_of
    from tb_perfadvisor.plain_text import plain, shell_path

    with show_progress(f"listing {path}"):
        listing = discover(path)
        notes = [*_logdir_notes(listing), *environment_notes()]
    console = terminal(highlight=False)
    is_healthy, most = True, sys.maxsize if lists_all else _MOST_LISTED
    how = f"perfadvisor doctor {shell_path(path)} --all"

    def say(label: str, style: str, text: str = "") -> None:
        console.print(Text.assemble((plain(label), style), plain(text)), soft_wrap=True)

    with printing():
        files = "1 file" if listing.scanned_files == 1 else f"{listing.scanned_files:,} files"
        say(f"{files} at {path}", "bold")
        listed = 0
        for capture in listing.captures:
            lines = _lines(listing, capture)
            is_broken = any(line.startswith((_BROKEN, _NO_TOOLS)) for line in lines)
            is_healthy &= not is_broken
            # One that is broken is listed in any case, as long as they are few.
            if listed >= most and not (is_broken and listed < 2 * most):
                continue
            listed += 1
            console.print()
            say(_title(capture), "cyan")
            for line in (*lines, *_documents(listing, capture)):
                say("", "", f"  {line}")
        if listed < len(listing.captures):
            console.print()
            say(f"And {len(listing.captures) - listed:,} more captures: {how}", "dim")
        hidden = sum(
            not format_of(capture.format).is_read_by_profile_tab for capture in listing.captures
        )
        if hidden:
            console.print()
            say(
                "",
                "",
                f"The Profile tab reads only .xplane.pb files: it cannot show {hidden:,} of these "
                "captures.",
            )
        if listing.rejected:
            console.print()
            say(f"Not used ({len(listing.rejected):,}):", "yellow")
        for file in listing.rejected[:most]:
            say("", "", f"  {file.path}: {file.reason}")
        if len(listing.rejected) > most:
            say(f"  and {len(listing.rejected) - most:,} more: {how}", "dim")
        console.print()
        for note in notes:
            text = f"{note.message} {note.remedy}".rstrip()
            say(f"{note.severity}: ", _STYLE[note.severity], text)
        if not notes and is_healthy:
            say("", "", "No problems found in the log directory or this environment.")
    if not listing.captures:
        sys.exit(EXIT_USAGE)


def _title(capture: Capture) -> str:
    names = dict.fromkeys(part for part in (capture.run, capture.session) if part not in ("", "."))
    return " / ".join(names) or "."


def _lines(listing: Listing, capture: Capture) -> list[str]:
    """The files of a capture, and whether the Profile tab can show it."""
    from tb_perfadvisor.ingest.files.tree import is_url
    from tb_perfadvisor.ingest.formats import format_of
    from tb_perfadvisor.ingest.profile_tab import (
        is_dated,
        is_writable,
        logdir_above,
        move_into_session,
        profile_target,
        remembers_no_tools,
    )
    from tb_perfadvisor.plain_text import shell_path
    from tb_perfadvisor.units import format_bytes

    format = format_of(capture.format)
    shown = capture.files if len(capture.files) <= _MAX_FILES + 1 else capture.files[:_MAX_FILES]
    lines = [
        f"used: {file.path} ({format.label}, {format_bytes(file.size_bytes)})" for file in shown
    ]
    if len(shown) < len(capture.files):
        lines.append(f"and {len(capture.files) - len(shown):,} more files of this kind")
    claimed = Counter(file.rank for file in capture.files if file.rank is not None)
    lines += [
        f"{count} of these files claim to be rank {rank}"
        for rank, count in claimed.items()
        if count > 1 and not capture.merges_hosts
    ]
    lines += [
        f"read beside the events: {file.path}"
        for file in (*capture.compile_logs, *capture.snapshots, *capture.facts)
    ]
    if not format.is_read_by_profile_tab:
        return lines
    root, file = listing.root, capture.files[0]
    if not is_url(root):
        problems = [line for member in capture.files for line in _problems(root, member)]
        lines += problems
        if any(line.startswith(_BROKEN) for line in problems):
            return [*lines, "Profile tab: may show nothing for this session"]
    if profile_target(file.path):
        if not is_url(root) and not is_writable(root, file.system_path):
            return [
                *lines,
                "Profile tab: may look empty, because it cannot write to the file's directory",
            ]
        stale = remembers_no_tools(root, file)
        if stale:
            return [*lines, _NO_TOOLS, f"  rm {shell_path(str(Path(root, stale)))}"]
        lines.append("Profile tab: shown")
        if not is_dated(file.path.split("/")[-2]):
            lines.append(
                "Vertex AI: only sessions named YYYY_MM_DD_HH_MM_SS are uploaded; "
                "rename this one to upload it"
            )
        return lines
    if is_url(root):
        return [
            *lines,
            "Profile tab: not shown, because it only looks in RUN/plugins/profile/SESSION/",
        ]
    above = logdir_above(root, file.path)
    if above is not None:
        return [
            *lines,
            f"Profile tab: shown with --logdir {shell_path(above)}, but not with a directory "
            "below it",
        ]
    return [
        *lines,
        "Profile tab: not shown, because it only looks in RUN/plugins/profile/SESSION/. To fix it:",
        *(
            f"  {move_into_session(root, member.system_path, member.mtime_ns)}"
            for member in capture.files
        ),
    ]


def _documents(listing: Listing, capture: Capture) -> Iterator[str]:
    """How many documents each file holds, where there are several."""
    from tb_perfadvisor.errors import PerfAdvisorError
    from tb_perfadvisor.ingest.files.access import open_file
    from tb_perfadvisor.ingest.files.tree import is_url
    from tb_perfadvisor.ingest.json_trace.document import count_documents

    if capture.format != "kineto" or is_url(listing.root):
        return
    for file in capture.files[:_MAX_FILES]:
        with suppress(PerfAdvisorError), open_file(listing.root, file) as stream:
            count = count_documents(stream, file.path)
            if count > 1:
                yield f"{file.path} holds {count:,} documents, each of which is a trace of its own"


def _problems(root: str, file: ProfileFile) -> list[str]:
    """What is wrong with an xplane file, and the errors that its profiler recorded in it."""
    from tb_perfadvisor.ingest.xspace.reader import check_integrity

    integrity = check_integrity(root, file)
    complaints = [f"the profiler reported: {text}" for text in integrity.complaints]
    return [*([f"{_BROKEN}{integrity.broken}"] if integrity.broken else []), *complaints]


def _logdir_notes(listing: Listing) -> list[Note]:
    from tb_perfadvisor.note import Note

    notes = [
        Note("scan-incomplete", "warning", f"The scan is incomplete: {gap}.", "")
        for gap in listing.gaps
    ]
    if not listing.captures:
        notes.append(
            Note(
                "no-profiles",
                "error",
                "No readable profile was found.",
                "Expected *.pt.trace.json[.gz] (PyTorch) or plugins/profile/SESSION/HOST.xplane.pb "
                "(TensorFlow, JAX).",
            )
        )
    return notes
