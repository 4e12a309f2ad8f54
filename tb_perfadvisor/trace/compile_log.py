"""What torch.compile recorded of itself: graph breaks, compilations, and uses of its caches."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class CodeLine(Struct, frozen=True):
    """A line of the user's program."""

    file: str
    """The end of the path: `project/model.py`."""
    line: int

    def __str__(self) -> str:
        """As in `project/model.py:11`."""
        return f"{self.file}:{self.line}"


class GraphBreak(Struct, frozen=True):
    """One time that the compiler could not continue, while it compiled a function."""

    compile_id: str
    """As in `Compilation.id`; empty if unknown."""
    place: CodeLine | None
    reason: str
    """In one line."""
    explanation: str = ""
    hint: str = ""
    is_uncompiled: bool = False
    """Whether the whole function stays uncompiled because of it."""


class Compilation(Struct, frozen=True):
    """One compilation of one function. Unknown times are None."""

    id: str
    """`FRAME/VERSION`, as in the trace's `Torch-Compiled Region: FRAME/VERSION`."""
    function: str = ""
    place: CodeLine | None = None
    """Where the function begins."""
    start_unix_ns: int | None = None
    total_ns: int | None = None
    """Without the backward graph, if that was compiled at its first use."""
    backend_ns: int | None = None
    """The part of `total_ns` after tracing: AOTAutograd and the backend."""
    backward_ns: int | None = None
    """Compiling the backward graph at its first use, later than `total_ns`."""
    failed_guards: tuple[str, ...] = ()
    """Why no earlier version fitted, one reason for each, the latest version first."""
    failure: str = ""
    """Why the function is not compiled, in one line."""
    reached_limit: bool = False
    """Whether it failed because the function had been compiled too often."""

    @property
    def is_recompilation(self) -> bool:
        """Whether the function had been compiled before."""
        return bool(self.failed_guards)

    @property
    def known_ns(self) -> int:
        """All its recorded time."""
        return (self.total_ns or 0) + (self.backward_ns or 0)


class CacheUse(Struct, frozen=True):
    """How often one cache of compiled code was asked."""

    name: str
    hits: int = 0
    misses: int = 0
    bypasses: int = 0
    """How often it was not used, because something could not be cached."""
    reasons: tuple[str, ...] = ()
    """Why it was bypassed, each reason once."""


class CompilePhase(Struct, frozen=True):
    """A part of the compiler's work."""

    name: str
    count: int
    self_ns: int
    """Time without the phases inside it."""


class CompileLog(Struct, frozen=True):
    """One process's log of `TORCH_TRACE`."""

    path: str
    """Relative to the log directory."""
    version: str = ""
    """Of PyTorch; empty if unknown."""
    rank: int | None = None
    process: int | None = None
    start_unix_ns: int | None = None
    end_unix_ns: int | None = None
    compilations: tuple[Compilation, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    caches: tuple[CacheUse, ...] = ()
    phases: tuple[CompilePhase, ...] = ()
    """The longest first."""
    by_id: Mapping[str, Compilation] = field(default_factory=dict)
    """`compilations` by id; the last, if ids were used again after `torch._dynamo.reset()`."""

    @property
    def known_ns(self) -> int:
        """The time of all compilations."""
        return sum(compilation.known_ns for compilation in self.compilations)
