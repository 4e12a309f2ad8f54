"""Answers one request: `python -m tb_perfadvisor.mcp.worker REQUEST`, with the request as JSON.

Writes progress, and then the answer or an error, as lines of JSON to stderr. Does not import the
SDK.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tb_perfadvisor.execution.child_process import end_with_parent, say, throttled
from tb_perfadvisor.execution.limits import limit_memory


class Request(msgspec.Struct, frozen=True):
    """What a worker is asked."""

    root: str
    repository: str | None
    tool: str
    """A method of `Answers`."""
    arguments: dict[str, str]
    memory_limit_bytes: int
    """0 for no limit."""


def main() -> int:
    """Answer the request in the arguments of the process.

    Returns:
        The exit status.
    """
    request = msgspec.json.decode(sys.argv[1], type=Request)
    end_with_parent()
    limit_memory(request.memory_limit_bytes)
    try:
        say({"answer": _answer(request)})
    except Exception as error:
        say({"error": _describe(error)})
        return 2
    return 0


def _answer(request: Request) -> str:
    from tb_perfadvisor.mcp.answers import Answers

    repository = None if request.repository is None else Path(request.repository)
    answers = Answers(Path(request.root), repository, throttled(say))
    answer: str = getattr(answers, request.tool)(**request.arguments)
    return answer


def _describe(error: Exception) -> str:
    """Describe an error to the agent; log a bug."""
    from tb_perfadvisor.error_log import write_error_log
    from tb_perfadvisor.errors import UsageError, contained, log_bug
    from tb_perfadvisor.mcp.answers import marked
    from tb_perfadvisor.plain_text import plain_lines

    shown = contained(error, what="the request could not be answered")
    write_error_log()
    log_bug(shown)
    text = plain_lines(str(shown))
    # The others name files, and say what was found in them.
    return text if isinstance(shown, UsageError) else marked(text, "call `doctor`")


if __name__ == "__main__":
    sys.exit(main())
