"""What the compiler's messages say: where it broke, why, and which guard failed."""

from __future__ import annotations

import re
from typing import Final

from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.trace.compile_log import CodeLine, GraphBreak

_LONGEST_TEXT: Final = 300
_SHOWN_PARTS: Final = 2
"""Enough of a path to find a file, and no more of the machine's directories."""
_MOST_TEXT: Final = 100_000

_PLACE = re.compile(r"in user code at (?P<file>[^\n]+):(?P<line>\d{1,7})\s*$", re.MULTILINE)
_FRAME = re.compile(r'^ +File "(?P<file>[^"\n]+)", line (?P<line>\d{1,7})', re.MULTILINE)
_USER_CODE = re.compile(
    r"(?:User code traceback|in the following user code|from user code)[^\n]*\n"
)

_TRACEBACK = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)
_REASON = re.compile(r"Graph Break Reason:\s*")
_INTRODUCTION = re.compile(
    r"(?:Encountered graph break when attempting to trace|Failed to handle graph break)[^\n]*\n\s*"
)
_EXPLANATION = re.compile(r"^\s*Explanation:\s*([^\n]+)", re.MULTILINE)
_HINT = re.compile(r"^\s*Hint:\s*([^\n]+)", re.MULTILINE)
_EAGER = re.compile(r"falling back to eager|fall back to eager|Skipping the function")
_LIMIT = re.compile(r"recompile[ _]limit|cache_size_limit|RecompileLimit", re.IGNORECASE)
_VERSION = re.compile(r"^\d+/\d+: ")
_COMMENTED_PLACE = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d{1,7})")
_COMMENT = re.compile(r"\s+#\s(?=\S)")


def is_recompile_limit(failure: str) -> bool:
    """Whether a compilation failed because the function had been compiled too often."""
    return _LIMIT.search(failure) is not None


def parse_break(text: str, compile_id: str) -> GraphBreak:
    """A graph break from its message.

    Args:
        text: The payload of `dynamo_graph_break_reason`.
        compile_id: Of the compilation.
    """
    text = text[:_MOST_TEXT]
    found = _REASON.search(text)
    reason_at = found.end() if found else 0
    introduction = _INTRODUCTION.match(text, reason_at)
    reason = first_line(text[introduction.end() if introduction else reason_at :])
    explanation, hint = _EXPLANATION.search(text), _HINT.search(text)
    return GraphBreak(
        compile_id=compile_id,
        place=_place_of(text),
        reason=reason,
        explanation=first_line(explanation[1]) if explanation else "",
        hint=first_line(hint[1]) if hint else "",
        is_uncompiled=_EAGER.search(text) is not None,
    )


def parse_guard(text: object) -> str:
    """The guard that failed, without the version that it belongs to, and with its source line."""
    line = first_line(_VERSION.sub("", str(text)))
    guard, *comments = _COMMENT.split(line)
    place = _COMMENTED_PLACE.match(comments[-1]) if comments else None
    if place is None:
        return guard.strip()
    return f"{guard.strip()} ({short_place(place['file'], int(place['line']))})"


def first_line(text: str) -> str:
    """The first line that is not empty, printable and not too long."""
    line = plain(next((line.strip() for line in text.splitlines() if line.strip()), ""))
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 1]}…"


def short_place(file: str, line: object) -> CodeLine | None:
    """A place with the end of its path; None if the line is unknown."""
    if not file or isinstance(line, bool) or not isinstance(line, int) or not 0 < line < 10**7:
        return None
    parts = [part for part in plain(file).replace("\\", "/").split("/") if part]
    return CodeLine("/".join(parts[-_SHOWN_PARTS:]), line) if parts else None


def _place_of(text: str) -> CodeLine | None:
    found = _PLACE.search(text)
    if found is None:
        # The innermost frame of the user's code, before the compiler's own traceback.
        user_code = _USER_CODE.search(text)
        if user_code is None:
            return None
        end = _TRACEBACK.search(text, user_code.end())
        frames = list(_FRAME.finditer(text, user_code.end(), end.start() if end else len(text)))
        if not frames:
            return None
        found = frames[-1]
    return short_place(found["file"], int(found["line"]))
