"""Collects what torch.compile logged: records, spans, and why graphs break.

Sources: torch/_dynamo/utils.py (chromium events, CompilationMetrics), torch/_dynamo/guards.py
(recompile_reasons), torch/_dynamo/symbolic_convert.py and exc.py (dynamo_graph_break_reason),
torch/_inductor/codecache.py and torch/_functorch/_aot_autograd/autograd_cache.py (caches).
"""

from __future__ import annotations

import math
import re
from array import array
from collections import defaultdict
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.ingest.compile_log.records import LogRecord
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.trace import Source
from tb_perfadvisor.trace.assembler import Interned
from tb_perfadvisor.trace.compile_log import (
    CacheUse,
    CodeLine,
    Compilation,
    CompileLog,
    CompilePhase,
    GraphBreak,
)
from tb_perfadvisor.trace.nesting import enclosing_rows, start_order
from tb_perfadvisor.trace.tables import Int32, Int64

_NS_PER_US: Final = 1_000
_LATEST_US: Final = 2.0**53
"""Beyond the year 2200, and no longer exact."""
_MOST_OPEN: Final = 1_000
"""A phase is seldom inside itself. Without a limit, a log that lacks ends would fill the memory."""


class PhaseSpans(Struct, frozen=True):
    """Phases that have ended; columns are (spans,)."""

    start_ns: Int64
    """From `clock_unix_ns`."""
    duration_ns: Int64
    name: Int32
    """Index into `names`."""
    names: list[str]
    phases: tuple[CompilePhase, ...]
    clock_unix_ns: int | None
    """None without any span."""


class SpanCollector:
    """Pairs the events that begin and end a phase."""

    def __init__(self) -> None:
        self._names = Interned()
        self._start_us = array("d")
        self._end_us = array("d")
        self._name = array("i")
        # Worker threads of the compiler log with the main thread's id, so that phases overlap: an
        # end belongs to the last beginning of the same name.
        self._open: dict[tuple[tuple[int, int], int], list[float]] = defaultdict(list)
        self.first_us: float | None = None
        self.last_us: float | None = None

    def begin(self, name: str, at_us: float, thread: tuple[int, int]) -> None:
        """A phase begins."""
        opened = self._open[thread, self._names[name]]
        if self._saw(at_us) and len(opened) < _MOST_OPEN:
            opened.append(at_us)

    def end(self, name: str, at_us: float, thread: tuple[int, int]) -> None:
        """A phase ends; an end without a beginning is left out."""
        number = self._names[name]
        opened = self._open[thread, number]
        if opened and self._saw(at_us) and at_us >= opened[-1]:
            self._start_us.append(opened.pop())
            self._end_us.append(at_us)
            self._name.append(number)

    def finish(self) -> PhaseSpans:
        """All phases that have ended."""
        names = list(self._names)
        clock_us = math.floor(min(self._start_us)) if self._start_us else None
        start_us = np.frombuffer(self._start_us, np.float64) - (clock_us or 0)
        end_us = np.frombuffer(self._end_us, np.float64) - (clock_us or 0)
        start_ns = np.round(start_us * _NS_PER_US).astype(np.int64)
        end_ns = np.round(end_us * _NS_PER_US).astype(np.int64)
        name = np.frombuffer(self._name, np.int32)
        return PhaseSpans(
            start_ns=start_ns,
            duration_ns=end_ns - start_ns,
            name=name,
            names=names,
            phases=_phases(start_ns, end_ns, name, names),
            clock_unix_ns=None if clock_us is None else clock_us * _NS_PER_US,
        )

    def _saw(self, at_us: float) -> bool:
        if not 0 < at_us < _LATEST_US:
            return False
        self.first_us = at_us if self.first_us is None else min(self.first_us, at_us)
        self.last_us = at_us if self.last_us is None else max(self.last_us, at_us)
        return True


def _phases(
    start_ns: Int64, end_ns: Int64, name: Int32, names: list[str]
) -> tuple[CompilePhase, ...]:
    """The time of each phase without the phases inside it, the longest first."""
    order = start_order(start_ns, end_ns - start_ns)
    start_ns, end_ns, name = start_ns[order], end_ns[order], name[order]
    parent = enclosing_rows(start_ns, end_ns, np.zeros(len(order), np.int32))
    self_ns = end_ns - start_ns
    has_parent = parent >= 0
    np.subtract.at(self_ns, parent[has_parent], (end_ns - start_ns)[has_parent])
    totals = np.zeros(len(names), np.int64)
    np.add.at(totals, name, np.maximum(self_ns, 0))
    counts = np.bincount(name, minlength=len(names))
    return tuple(
        CompilePhase(names[number], int(counts[number]), int(totals[number]))
        for number in np.argsort(-totals, kind="stable").tolist()
        if counts[number]
    )


_LONGEST_TEXT: Final = 300
_SHOWN_PARTS: Final = 2
"""Enough of a path to find a file, and no more of the machine's directories."""
_MOST_TEXT: Final = 100_000

_PLACE = regex(r"in user code at (?P<file>[^\n]{1,1000}):(?P<line>\d{1,7})[ \t]*$", re.MULTILINE)
_FRAME = regex(r'^ +File "(?P<file>[^"\n]+)", line (?P<line>\d{1,7})', re.MULTILINE)
_USER_CODE = regex(
    r"(?:User code traceback|in the following user code|from user code)[^\n]{0,1000}\n"
)

_TRACEBACK = regex(r"^Traceback \(most recent call last\)", re.MULTILINE)
_REASON = regex(r"Graph Break Reason:\s*")
_INTRODUCTION = regex(
    r"(?:Encountered graph break when attempting to trace|Failed to handle graph break)"
    r"[^\n]{0,1000}\n\s*"
)
_EXPLANATION = regex(r"^[ \t]*Explanation:\s*([^\n]+)", re.MULTILINE)
_HINT = regex(r"^[ \t]*Hint:\s*([^\n]+)", re.MULTILINE)
_EAGER = regex(r"falling back to eager|fall back to eager|Skipping the function")
_LIMIT = regex(r"recompile[ _]limit|cache_size_limit|RecompileLimit", re.IGNORECASE)
_VERSION = regex(r"^\d+/\d+: ")
_COMMENTED_PLACE = regex(r"(?P<file>[^\s:]+):(?P<line>\d{1,7})")
_COMMENT = regex(r"(?<!\s)\s+#\s(?=\S)")


def is_recompile_limit(failure: str) -> bool:
    """Whether a compilation failed because the function had been compiled too often."""
    return _LIMIT.search(failure) is not None


def parse_break(text: str, compile_id: str) -> GraphBreak:
    """A graph break from its message.

    `text` is the payload of `dynamo_graph_break_reason`.
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


_NS_PER_S: Final = 1_000_000_000
_MOST_EVENT_BYTES: Final = 65_536
"""Events of phases have a kilobyte. Those on caches repeat the whole graph, and are not needed."""
_MOST_REASONS: Final = 20
_MOST_RANKS: Final = 10_000_000
"""More processes than any job has: such a rank is damaged."""
_CACHE = regex(r"^(fx_graph|aotautograd|autograd|dynamo|precompile)_cache_(hit|miss|bypass)$")
_CACHES: Final = {
    "fx_graph": "Inductor (FX graphs)",
    "aotautograd": "AOTAutograd",
    "autograd": "AOTAutograd",
    "dynamo": "Dynamo",
    "precompile": "Precompilation",
}
_COUNTED: Final = {"hit": "hits", "miss": "misses", "bypass": "bypasses"}


class _Header(msgspec.Struct, frozen=True):
    """The fields of a header that are used. Others are skipped without decoding."""

    chromium_event: dict[str, Any] | None = None
    artifact: dict[str, Any] | None = None
    dynamo_start: dict[str, Any] | None = None
    compilation_metrics: dict[str, Any] | None = None
    bwd_compilation_metrics: dict[str, Any] | None = None
    rank: Any = None
    frame_id: Any = None
    frame_compile_id: Any = None

    @property
    def compile_id(self) -> str:
        """`FRAME/VERSION`; empty outside of compilations."""
        if not isinstance(self.frame_id, int) or not isinstance(self.frame_compile_id, int):
            return ""
        return f"{self.frame_id}/{self.frame_compile_id}"


class _Event(msgspec.Struct, frozen=True):
    name: str
    ts: float
    ph: str
    tid: int = 0
    pid: int = 0


_decode_header = msgspec.json.Decoder(_Header).decode
_decode_event = msgspec.json.Decoder(_Event, strict=False).decode


class LogCollector:
    """Takes records in the order of the file."""

    def __init__(self) -> None:
        self.count = 0
        """Records that torch.compile wrote."""
        self._spans = SpanCollector()
        self._finished_spans: PhaseSpans | None = None
        self._compilations: dict[str, Compilation] = {}
        self._earlier: list[Compilation] = []
        self._breaks: list[GraphBreak] = []
        self._broken: set[str] = set()
        self._caches: dict[str, CacheUse] = {}
        self._version = ""
        self._rank: int | None = None
        self._process: int | None = None

    def add(self, record: LogRecord) -> None:
        """Add one record; one that cannot be read is skipped."""
        try:
            header = _decode_header(record.header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        self.count += 1
        self._process = record.process
        if isinstance(header.rank, int) and 0 <= header.rank < _MOST_RANKS:
            self._rank = header.rank
        if header.chromium_event is not None:
            self._add_event(record)
        elif header.artifact is not None:
            self._add_artifact(header, record)
        elif header.dynamo_start is not None:
            self._started(header.compile_id)
        elif header.compilation_metrics is not None:
            self._add_metrics(header.compile_id, header.compilation_metrics)
        elif header.bwd_compilation_metrics is not None:
            self._add_backward(header.compile_id, header.bwd_compilation_metrics)

    @property
    def spans(self) -> PhaseSpans:
        """The phases, once all records were added."""
        if self._finished_spans is None:
            self._finished_spans = self._spans.finish()
        return self._finished_spans

    def finish(self, source: Source) -> CompileLog:
        """The log, once all records were added."""
        latest = tuple(map(self._with_function, self._compilations.values()))
        spans = self._spans
        return CompileLog(
            path=source.path,
            version=self._version,
            rank=source.rank if source.rank is not None else self._rank,
            process=self._process,
            start_unix_ns=_ns(spans.first_us, _NS_PER_US),
            end_unix_ns=_ns(spans.last_us, _NS_PER_US),
            compilations=(*self._earlier, *latest),
            breaks=tuple(self._breaks),
            caches=tuple(self._caches.values()),
            phases=self.spans.phases,
            by_id={each.id: each for each in latest},
        )

    def _with_function(self, compilation: Compilation) -> Compilation:
        """A compilation that failed early names no function; an earlier version does."""
        if compilation.function:
            return compilation
        frame = compilation.id.partition("/")[0]
        first = self._compilations.get(f"{frame}/0", compilation)
        return replace(compilation, function=first.function, place=first.place)

    def _started(self, compile_id: str) -> Compilation | None:
        """The compilation that is going on; None outside of any.

        `torch._dynamo.reset()` begins to count again. Then an id that has finished comes again.
        """
        if not compile_id:
            return None
        last = self._compilations.get(compile_id)
        if last is None or last.total_ns is not None or last.failure:
            if last is not None:
                self._earlier.append(last)
                self._broken.discard(compile_id)
            last = self._compilations[compile_id] = Compilation(compile_id)
        return last

    def _add_event(self, record: LogRecord) -> None:
        if len(record.rest) > _MOST_EVENT_BYTES:
            return
        try:
            event = _decode_event(record.payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        thread = (event.pid, event.tid)
        if event.ph == "B":
            self._spans.begin(plain(event.name), event.ts, thread)
        elif event.ph == "E":
            self._spans.end(plain(event.name), event.ts, thread)

    def _add_artifact(self, header: _Header, record: LogRecord) -> None:
        name = (header.artifact or {}).get("name")
        if not isinstance(name, str):
            return
        if name == "dynamo_graph_break_reason":
            text = record.payload.decode("utf-8", "replace")
            self._breaks.append(parse_break(text, header.compile_id))
            self._broken.add(header.compile_id)
        elif name == "recompile_reasons":
            self._add_guards(header.compile_id, record.payload)
        elif name == "torch_version":
            found = re.search(rb'"pytorch_version": "([\w.+-]{1,40})"', record.payload)
            self._version = found[1].decode() if found else ""
        elif (use := _CACHE.match(name)) is not None:
            self._add_cache_use(_CACHES[use[1]], _COUNTED[use[2]], record)

    def _add_guards(self, compile_id: str, payload: bytes) -> None:
        compilation = self._started(compile_id)
        if compilation is None:
            return
        # One reason is written as text, several as a list in JSON.
        text = payload.decode("utf-8", "replace")
        try:
            decoded = msgspec.json.decode(text) if text.startswith("[") else text
        except (msgspec.DecodeError, RecursionError):
            decoded = text
        reasons = decoded if isinstance(decoded, list) else [decoded]
        guards = [parse_guard(reason) for reason in reasons[:_MOST_REASONS] if reason]
        self._compilations[compile_id] = replace(compilation, failed_guards=tuple(guards))

    def _add_cache_use(self, cache: str, counted: str, record: LogRecord) -> None:
        use = self._caches.get(cache, CacheUse(cache))
        reasons = use.reasons
        if counted == "bypasses" and len(reasons) < _MOST_REASONS:
            found = re.search(rb'"cache_bypass_reason": ("(?:[^"\\]|\\.){1,2000}")', record.rest)
            reason = first_line(_decoded(found[1])) if found else ""
            reasons = tuple(dict.fromkeys([*reasons, *([reason] if reason else [])]))
        more = {counted: getattr(use, counted) + 1}
        self._caches[cache] = replace(use, reasons=reasons, **more)

    def _add_metrics(self, compile_id: str, metrics: dict[str, Any]) -> None:
        compilation = self._started(compile_id)
        if compilation is None:
            return
        failure = _failure(metrics)
        line = metrics.get("co_firstlineno")
        reason = metrics.get("recompile_reason")
        guards = compilation.failed_guards
        if not guards and isinstance(reason, str) and reason:
            guards = (parse_guard(reason),)
        started = self._compilations[compile_id] = replace(
            compilation,
            function=plain(str(metrics.get("co_name") or "")),
            place=short_place(str(metrics.get("co_filename") or ""), line),
            start_unix_ns=_time_ns(metrics, "start_time_us", "start_time"),
            total_ns=_time_ns(
                metrics,
                "duration_us",
                "dynamo_cumulative_compile_time_us",
                "entire_frame_compile_time_s",
            ),
            backend_ns=_time_ns(
                metrics, "aot_autograd_cumulative_compile_time_us", "backend_compile_time_s"
            ),
            failed_guards=guards,
            failure=failure,
            reached_limit=is_recompile_limit(failure),
        )
        if failure and not is_recompile_limit(failure) and compile_id not in self._broken:
            # The compiler could not do anything with this function, not even a part.
            place = short_place(
                str(metrics.get("fail_user_frame_filename") or ""),
                metrics.get("fail_user_frame_lineno"),
            )
            self._breaks.append(
                GraphBreak(compile_id, place or started.place, failure, is_uncompiled=True)
            )

    def _add_backward(self, compile_id: str, metrics: dict[str, Any]) -> None:
        compilation = self._compilations.get(compile_id)
        took_ns = _time_ns(metrics, "duration_us", "inductor_compile_time_s")
        if compilation is not None and took_ns is not None:
            self._compilations[compile_id] = replace(compilation, backward_ns=took_ns)


def _decoded(quoted: bytes) -> str:
    """A text in JSON, with its quotation marks; as it is if it is no JSON."""
    try:
        return str(msgspec.json.decode(quoted, type=str))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return quoted[1:-1].decode("utf-8", "replace")


def _failure(metrics: dict[str, Any]) -> str:
    kind, reason = metrics.get("fail_type"), metrics.get("fail_reason")
    if not isinstance(kind, str) or not kind:
        return ""
    text = first_line(reason) if isinstance(reason, str) else ""
    if text.endswith(":"):  # "backend='…' raised:", and what it raised on the next line
        text = f"{text} {first_line(str(reason).partition(text)[2])}".strip()
    name = plain(kind.rsplit(".", 1)[-1])
    return f"{name}: {text}" if text else name


def _time_ns(metrics: dict[str, Any], *keys: str) -> int | None:
    """The first of some times that is known. Newer versions of PyTorch write microseconds."""
    for key in keys:
        found = _ns(metrics.get(key), _NS_PER_US if key.endswith("_us") else _NS_PER_S)
        if found is not None:
            return found
    return None


def _ns(value: object, factor: int) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value * factor < _LATEST_NS:
        return None
    return round(value * factor)


_LATEST_NS: Final = 2**63
