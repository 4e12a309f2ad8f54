"""`perfadvisor doctor`: why a tab shows what it shows, or nothing."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tb_perfadvisor.cli.help import Argument, Command
from tb_perfadvisor.cli.terminal import EXIT_USAGE, printing, terminal, watching

if TYPE_CHECKING:
    from tb_perfadvisor.ingest.discovery import Capture, Listing
    from tb_perfadvisor.trace import Note

# Of files that are alike.
_NAMED = 4
_BROKEN = "broken: "
_NO_TOOLS = "Profile tab: shows no tools, as it remembers. To let it look again:"
_STYLE = {"error": "bold red", "warning": "yellow", "info": "dim"}
_FORMATS = {
    "kineto": "PyTorch trace",
    "xplane": "xplane",
    "chrome": "export of a profile",
    "tf-tools": "results of TensorFlow's old profiler",
}


@click.command(cls=Command)
@click.argument("path", cls=Argument, help="A logdir, as TensorBoard is given it, or one file.")
def doctor(path: str) -> None:
    """Say what was found below PATH, what was not used and why, and what is wrong around it."""
    from rich.text import Text

    from tb_perfadvisor.environment import environment_notes
    from tb_perfadvisor.ingest.discovery import discover
    from tb_perfadvisor.report.formats.wording import plain

    with watching(f"looking through {path}"):
        listing = discover(path)
        notes = [*_logdir_notes(listing), *environment_notes()]
    console = terminal(highlight=False)
    is_whole = True

    def say(label: str, style: str, text: str = "") -> None:
        console.print(Text.assemble((plain(label), style), plain(text)), soft_wrap=True)

    with printing():
        say(f"{listing.scanned_files:,} files below {path}", "bold")
        for capture in listing.captures:
            console.print()
            say(_title(capture), "cyan")
            for line in _lines(listing, capture):
                is_whole &= not line.startswith((_BROKEN, _NO_TOOLS))
                say("", "", f"  {line}")
        hidden = sum(capture.format != "xplane" for capture in listing.captures)
        if hidden:
            console.print()
            say(
                "",
                "",
                f"The Profile tab reads .xplane.pb files alone: {hidden:,} of these runs "
                "it cannot show.",
            )
        if listing.rejected:
            console.print()
            say(f"Not used ({len(listing.rejected)}):", "yellow")
        for one in listing.rejected:
            say("", "", f"  {one.path}: {one.reason}")
        console.print()
        for one_note in notes:
            text = f"{one_note.message} {one_note.remedy}".rstrip()
            say(f"{one_note.severity}: ", _STYLE[one_note.severity], text)
        if not notes and is_whole:
            say("", "", "Nothing is wrong with the log directory or this environment.")
    if not listing.captures:
        sys.exit(EXIT_USAGE)


def _title(capture: Capture) -> str:
    named = dict.fromkeys(part for part in (capture.run, capture.session) if part not in ("", "."))
    return " / ".join(named) or "."


def _lines(listing: Listing, capture: Capture) -> list[str]:
    """What a capture is made of, and whether the Profile tab can see it."""
    from tb_perfadvisor.ingest.files.local_and_remote import is_url
    from tb_perfadvisor.ingest.profile_tab import (
        is_dated,
        is_writable,
        logdir_above,
        move_into_session,
        profile_target,
        remembers_no_tools,
    )
    from tb_perfadvisor.units import format_bytes

    shown = capture.files if len(capture.files) <= _NAMED + 1 else capture.files[:_NAMED]
    lines = [
        f"used: {file.path} ({_FORMATS[capture.format]}, {format_bytes(file.size_bytes)})"
        for file in shown
    ]
    if len(shown) < len(capture.files):
        lines.append(f"and {len(capture.files) - len(shown):,} more files like these")
    lines += [f"beside it, not needed: {name}" for name in capture.beside]
    if capture.format != "xplane":
        return lines
    root, file = listing.root, capture.files[0]
    if not is_url(root):
        problems = [line for one in capture.files for line in _problems(Path(root, one.path))]
        lines += problems
        if any(line.startswith(_BROKEN) for line in problems):
            return [*lines, "Profile tab: may show nothing of the session"]
    if profile_target(file.path):
        if not is_url(root) and not is_writable(root, file.path):
            return [*lines, "Profile tab: may look empty, for it cannot write beside the file"]
        forgotten = remembers_no_tools(root, file.path)
        if forgotten:
            return [*lines, _NO_TOOLS, f"  rm {shlex.quote(str(Path(root, forgotten)))}"]
        lines.append("Profile tab: shown")
        if not is_dated(file.path.split("/")[-2]):
            lines.append(
                "Vertex AI: the uploader sends sessions named YYYY_MM_DD_HH_MM_SS alone; "
                "rename this one to send it"
            )
        return lines
    if is_url(root):
        return [*lines, "Profile tab: not shown, it looks into RUN/plugins/profile/SESSION/ alone"]
    above = logdir_above(root, file.path)
    if above is not None:
        return [*lines, f"Profile tab: shown with --logdir {above}, not with a directory below it"]
    return [
        *lines,
        "Profile tab: not shown, it looks into RUN/plugins/profile/SESSION/ alone. To show it:",
        *(f"  {move_into_session(root, one.path, one.mtime_ns)}" for one in capture.files),
    ]


def _problems(file: Path) -> list[str]:
    """What is wrong with an xplane as a file, and what its profiler complained of in it."""
    from tb_perfadvisor.ingest.xplane.integrity import check_integrity

    found = check_integrity(file)
    said = [f"its profiler says: {text}" for text in found.complaints]
    return [*([f"{_BROKEN}{found.broken}"] if found.broken else []), *said]


def _logdir_notes(listing: Listing) -> list[Note]:
    from tb_perfadvisor.trace import Note

    notes = [
        Note("scan-incomplete", "warning", f"Not everything was looked at: {gap}.", "")
        for gap in listing.gaps
    ]
    if not listing.captures:
        notes.append(
            Note(
                "no-profiles",
                "error",
                f"None of {listing.scanned_files:,} files is a profile that can be read.",
                "Expected *.pt.trace.json[.gz] (PyTorch) or plugins/profile/SESSION/HOST.xplane.pb "
                "(TensorFlow, JAX).",
            )
        )
    return notes
