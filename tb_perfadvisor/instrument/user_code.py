"""Which frames of a stack are the user's code, and not a framework's, Python's or ours."""

from __future__ import annotations

import ast
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from types import FrameType

_OURS = str(Path(__file__).resolve().parent.parent) + os.sep
_STANDARD = tuple(
    os.path.realpath(path) + os.sep
    for name in ("stdlib", "platstdlib")
    if (path := sysconfig.get_paths().get(name))
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_GENERATED = "__autograph_generated_file"
"""What TensorFlow makes of the code of a tf.function, in a temporary file."""
_MOST_SOURCE_BYTES = 2_000_000
STARTED_IN = os.getcwd()  # noqa: PTH109 - cheap
"""The program may change its directory later."""


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the user's code on a stack, innermost first."""
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def frames_called_back(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of libraries between the user's on a stack, innermost first."""
    between: list[FrameType] | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if is_user_file(name):
            yield from between or ()
            between = []
        elif between is not None and any(part in name for part in _INSTALLED):
            between.append(frame)
        frame = frame.f_back


@cache
def is_user_file(name: str) -> bool:
    """Whether a code object's file is the user's."""
    if name.startswith("<"):
        return name == "<string>" or name.startswith("<ipython-input")
    path = os.path.realpath(name)
    if any(part in path for part in _INSTALLED) or is_our_file(name):
        return False
    return _GENERATED not in path and not path.startswith(_STANDARD)


@cache
def is_beside_script(name: str) -> bool:
    """Whether a file is in the folder of the script that runs, or below."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return Path(os.path.realpath(name)).is_relative_to(Path(os.path.realpath(script)).parent)


@cache
def is_our_file(name: str) -> bool:
    """Whether a code object's file is part of this package."""
    return os.path.realpath(name).startswith(_OURS)


@cache
def is_standard_file(name: str) -> bool:
    """Whether a code object's file is part of Python's own library."""
    if name.startswith("<"):
        return name.startswith("<frozen ")
    path = os.path.realpath(name)
    return path.startswith(_STANDARD) and not any(part in path for part in _INSTALLED)


@cache
def shown_path(name: str) -> str:
    """A file relative to where the program was started; elsewhere its name only."""
    if name.startswith("<"):
        return name
    path, base = os.path.realpath(name), os.path.realpath(STARTED_IN) + os.sep
    inside = path.removeprefix(base) if path.startswith(base) else Path(path).name
    return inside.replace(os.sep, "/")


def place_of(frame: FrameType) -> tuple[str, int, str]:
    """Path, line and function of a frame."""
    code = frame.f_code
    function = "" if code.co_name == "<module>" else code.co_name
    return shown_path(code.co_filename), frame.f_lineno or 1, function


def loop_around(frame: FrameType | None) -> tuple[FrameType, int] | None:
    """The innermost loop of the user's code around a call: the frame that runs it, and its line."""
    for caller in user_frames(frame):
        line = innermost_loop(caller.f_code.co_filename, caller.f_lineno)
        if line is not None:
            return caller, line
    return None


def all_loops_around(frame: FrameType | None) -> set[tuple[str, int]]:
    """The loops of the user's code around a call, by file and first line."""
    return {
        (each.f_code.co_filename, first)
        for each in user_frames(frame)
        for first, last in loops_of(each.f_code.co_filename)
        if first <= each.f_lineno <= last
    }


def loops_or_line(frame: FrameType | None) -> set[tuple[str, int]]:
    """The same; where no loop is around the call, the line that makes it."""
    lines = ((each.f_code.co_filename, each.f_lineno) for each in user_frames(frame))
    return all_loops_around(frame) or {*islice(lines, 1)}


def innermost_loop(name: str, line: int) -> int | None:
    """The first line of the innermost loop of a function whose body has a line."""
    inside = [(begin, end) for begin, end in loops_of(name) if begin <= line <= end]
    return max(inside)[0] if inside else None


@cache
def loops_of(name: str) -> tuple[tuple[int, int], ...]:
    """The first and last lines of the loops of a file."""
    return tuple(
        (node.lineno, node.end_lineno or node.lineno)
        for node in _nodes(name)
        if isinstance(node, ast.For | ast.AsyncFor | ast.While)
    )


@cache
def yields_in_loop(name: str, loop: int) -> bool:
    """Whether the loop that begins on a line is the innermost one around a `yield`."""
    lines = (node.lineno for node in _nodes(name) if isinstance(node, ast.Yield))
    return any(innermost_loop(name, line) == loop for line in lines)


@cache
def conditions_with_remainders(name: str) -> tuple[tuple[int, int], ...]:
    """The first and last lines of what a file does under conditions like `step % 100 == 0`."""
    return tuple(
        (node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno)
        for node in _nodes(name)
        if isinstance(node, ast.If)
        and any(
            isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
            for part in ast.walk(node.test)
        )
    )


@cache
def _nodes(name: str) -> tuple[ast.AST, ...]:
    """The syntax of a file; nothing if it cannot be read."""
    with suppress(OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        path = Path(name)
        if path.stat().st_size <= _MOST_SOURCE_BYTES:
            return tuple(ast.walk(ast.parse(path.read_bytes())))
    return ()
