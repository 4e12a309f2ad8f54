"""Tries changes for an agent: with the commands that the user fixed when the server was started.

An agent chooses a recording below the root, one of these commands by its number, and a change by
its id in the catalog of advice. Nothing that it reads in a profile, and no text that it writes,
becomes part of what runs: patches are those that `suggest` makes.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from tb_perfadvisor.advice import change_ids
from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.mcp.answers import bounded, place_below
from tb_perfadvisor.plain_text import plain, plain_lines, shell_line
from tb_perfadvisor.report.formats.brief import path_word

_SHOWN_ERRORS = 5


class Trials:
    """The commands that may be tried; one trial runs at a time."""

    def __init__(
        self,
        root: Path,
        repository: Path,
        commands: Sequence[str],
        program: Sequence[str] = (sys.executable, "-m", "tb_perfadvisor"),
    ) -> None:
        """Prepare.

        Recordings outside of `root` are refused. The repository has the code of the programs;
        trials start there. Commands are as a user would type them, numbered from 1. Tests run
        `program` instead of `perfadvisor`.
        """
        self._root, self._repository, self._program = root, repository, tuple(program)
        self._turn = anyio.Semaphore(1)
        self._commands: list[list[str]] = []
        for command in commands:
            try:
                words = shlex.split(command)
            except ValueError as error:
                raise UsageError(f"{error}.", where=command) from error
            if not words:
                raise UsageError("a command to try is empty.")
            self._commands.append(words)

    @property
    def listed(self) -> str:
        """The commands with their numbers, in a line."""
        words = (f"{number}: {shell_line(each)}" for number, each in enumerate(self._commands, 1))
        return plain("; ".join(words))

    async def try_change(self, path: str, change: str, command: int) -> str:
        """Try a change for a recording, with one of the commands."""
        if change not in change_ids():
            raise UsageError(f"there is no change {change!r}.", hint="`finding` names them.")
        if not 1 <= command <= len(self._commands):
            raise UsageError(f"there is no command {command}.", hint=f"Commands: {self.listed}.")
        place = place_below(self._root, path)
        if not place.exists():
            raise UsageError("does not exist.", where=path, hint="`list_captures` names paths.")
        words = self._commands[command - 1]
        async with self._turn:
            output = await self._run(["try", str(place), "--change", change, "--yes", "--", *words])
        again = f"perfadvisor try {path_word(path)} --change {change} -- {shell_line(words)}"
        return bounded(plain_lines(output), f"run `{again}`")

    async def _run(self, arguments: list[str]) -> str:
        process = await anyio.open_process(
            [*self._program, *arguments],
            cwd=self._repository,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        said = {"stdout": b"", "stderr": b""}

        async def read(name: str, stream: anyio.abc.ByteReceiveStream | None) -> None:
            assert stream is not None
            async for piece in stream:
                said[name] += piece

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, "stdout", process.stdout)
                tasks.start_soon(read, "stderr", process.stderr)
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()  # it ends the program, and deletes its copies
                with anyio.CancelScope(shield=True):
                    await process.wait()
        output, errors = (said[name].decode("utf-8", "replace") for name in ("stdout", "stderr"))
        if status:
            last = " ".join(errors.strip().splitlines()[-_SHOWN_ERRORS:])
            raise PerfAdvisorError(plain(last) or f"the trial ended with status {status}.")
        return output
