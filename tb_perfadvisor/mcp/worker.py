"""A process that answers for agents.

Answers one request: `python -m tb_perfadvisor.mcp.worker REQUEST`, with the request as JSON.

Writes progress, and then the answer or an error, as lines of JSON to stderr. Does not import the
SDK.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.execution.execution import (
    command_of,
    end_with_parent,
    environment_of_child,
    say,
    throttled,
)
from tb_perfadvisor.execution.limits import (
    MEMORY_LIMIT_VARIABLE,
    TIME_LIMIT_VARIABLE,
    Limits,
    limit_memory,
)
from tb_perfadvisor.plain_text import plain


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
    """Answer the request in the arguments of the process, and return the exit status."""
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


_MOST_BYTES_OF_LINE = 1 << 20
_LOG_LINES = 5
Report = Callable[[str, float], Awaitable[None]]
"""Passes on a stage and the share that is done, 0 to 1."""


class Workers:
    """Starts a worker for each request; one runs at a time, so that the memory limit holds."""

    def __init__(self, limits: Limits, command: Sequence[str] | None = None) -> None:
        """Start no worker yet; tests pass a `command` to run instead of the worker."""
        self.limits = limits
        self._command = command or command_of("tb_perfadvisor.mcp.worker")
        self._turn = anyio.Semaphore(1)

    async def answer(self, request: Request, report: Report) -> str:
        """Answer a request. If the caller is canceled, the worker ends."""
        async with self._turn:
            with anyio.move_on_after(self.limits.time_s):
                return await self._ask(request, report)
            raise PerfAdvisorError(
                f"the answer took longer than {self.limits.time_s:g} s and was stopped.",
                hint="Name a single capture, or start the server with a larger "
                f"{TIME_LIMIT_VARIABLE}.",
            )

    async def _ask(self, request: Request, report: Report) -> str:
        process = await anyio.open_process(
            [*self._command, msgspec.json.encode(request).decode()],
            stdin=subprocess.PIPE,  # the worker ends when this closes
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment_of_child(),
        )
        log: deque[str] = deque(maxlen=_LOG_LINES)
        async with process:
            try:
                assert process.stderr is not None
                async for line in _lines(process.stderr):
                    message = _message(line)
                    if "answer" in message:
                        return str(message["answer"])
                    if "error" in message:
                        raise PerfAdvisorError(str(message["error"]))
                    if "stage" in message:
                        await report(str(message["stage"]), float(message["progress"]))
                    else:
                        log.append(line)
                status = await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
        said = plain(" ".join(log))
        gib = self.limits.memory_bytes / (1 << 30)
        raise PerfAdvisorError(
            f"the process that makes the answer ended with status {status}. {said}".rstrip(),
            hint=f"It may use {gib:.1f} GiB of memory. Record fewer steps, or start the server "
            f"with a larger {MEMORY_LIMIT_VARIABLE}.",
        )


async def _lines(stream: anyio.abc.ByteReceiveStream) -> AsyncIterator[str]:
    """The complete lines of a stream."""
    buffered = BufferedByteReceiveStream(stream)
    while True:
        try:
            line = await buffered.receive_until(b"\n", _MOST_BYTES_OF_LINE)
        except (anyio.IncompleteRead, anyio.DelimiterNotFound):
            return
        yield line.decode("utf-8", "replace")


def _message(line: str) -> dict[str, Any]:
    """Decode a line of JSON; return an empty dictionary for any other text."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
