"""Unified diffs that `git apply` takes."""

from __future__ import annotations

import difflib

_NO_NEWLINE = "\n\\ No newline at end of file\n"


def unified_diff(path: str, before: str, after: str) -> str:
    """The diff of a file; empty if nothing changed.

    Args:
        path: Relative to the repository, with `/`.
        before: The text of the file, with its line ends.
        after: The new text.

    Raises:
        ValueError: If the path cannot stand in a diff.
    """
    if not path.isprintable() or '"' in path or "\\" in path:
        raise ValueError(f"the name of {path!r} cannot be written into a patch")
    # Git ends names that contain spaces with a tab.
    end = "\t" if " " in path else ""
    lines = difflib.unified_diff(
        _lines(before), _lines(after), f"a/{path}{end}", f"b/{path}{end}", lineterm="\n"
    )
    text = "".join(line if line.endswith("\n") else line + _NO_NEWLINE for line in lines)
    return f"diff --git a/{path} b/{path}\n{text}" if text else ""


def _lines(text: str) -> list[str]:
    """Lines with their ends; `str.splitlines` would also split at form feeds, and git does not."""
    lines = text.split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended
