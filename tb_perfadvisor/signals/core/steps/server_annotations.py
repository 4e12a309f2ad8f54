"""The annotations with which inference servers mark their steps, and what their names say.

A step runs the model once for a batch of requests. It reads prompts (prefill), generates the next
token of requests (decode), or does both.

Sources: vllm/v1/worker/gpu_worker.py (`annotate_profile`, with and without
`detailed_trace_annotation`); sglang/srt/model_executor/ (`build_step_span_name`);
tensorrt_llm/_torch/pyexecutor/py_executor.py (`_forward_step`); AMD's ATOM, as TraceLens documents
its annotations.
"""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.steps.marker_rows import not_overlapping
from tb_perfadvisor.trace import EventKind, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64, UInt8

_N = r"\d{1,12}"
"""A count. Sums of longer ones, which no batch has, would overflow."""
_VLLM = regex(
    rf"^execute_context_(?P<prefills>{_N})\((?P<prefill_tokens>{_N})\)"
    rf"_generation_(?P<decodes>{_N})\((?P<decode_tokens>{_N})\)$"
)
_DETAILED = regex(
    rf"^execute_{_N}_context_(?P<prefills>{_N})\(sq(?P<prefill_tokens>{_N})sk\d+sqsq\d+sqsk\d+\)"
    rf"_generation_(?P<decodes>{_N})"
    rf"\(sq(?P<decode_tokens>{_N})sk(?P<cached>{_N})sqsq\d+sqsk\d+\)$"
)
_TENSORRT_LLM = regex(
    rf"^\[Executor\] _forward_step(?: \d+)?: (?P<prefills>{_N}) ctx reqs"
    rf"(?:, (?P<prefill_tokens>{_N}) ctx tokens)?, (?P<decodes>{_N}) gen reqs$"
)
_SGLANG = regex(rf"^step\[(?P<mode>[A-Z_]+) bs=(?P<requests>{_N})(?P<rest>(?: \w+=\d+)*)\]$")
_ATOM = regex(
    rf"^(?P<mode>prefill|decode)\[bs=(?P<requests>{_N})(?:/(?P<captured>{_N}))?"
    rf" tok=(?P<tokens>{_N})(?P<rest>.*)\]$"
)
_VALUE = regex(rf"\b(\w+)=({_N})\b")
_PREFIXES = ("execute_", "[Executor] _forward_step", "step[", "prefill[bs=", "decode[bs=")


class StepKind(IntEnum):
    """What a step of an inference server does."""

    PREFILL = 0
    MIXED = 1
    DECODE = 2

    @property
    def label(self) -> str:
        """In lower case, for users."""
        return self.name.lower()


class ServerBatch(Struct, frozen=True, kw_only=True):
    """The batch of a step; None is unknown."""

    kind: StepKind
    prefill_requests: int | None
    prefill_tokens: int | None
    decode_requests: int | None
    decode_tokens: int | None
    """More than requests if drafts of a speculative decoder are verified."""
    cached_tokens: int | None = None
    """Tokens in the key-value cache that the decoding requests attend to."""
    captured_requests: int | None = None
    """Size of the GPU graph that the batch is padded to."""


class ServerAnnotations(Struct, frozen=True):
    """Annotated steps of the thread that runs the model, by start; shape (steps,).

    Nested annotations of the same step count once. Unknown numbers are -1.
    """

    row: Int32
    kind: UInt8
    """`StepKind`."""
    prefill_requests: Int64
    prefill_tokens: Int64
    decode_requests: Int64
    decode_tokens: Int64
    cached_tokens: Int64
    captured_requests: Int64

    def __len__(self) -> int:
        """Number of annotated steps."""
        return len(self.row)


def parse_server_step(name: str) -> ServerBatch | None:
    """What an annotation says about a step; None if it is none, or if the step is empty."""
    if not name.startswith(_PREFIXES):
        return None
    counted = _VLLM.match(name) or _DETAILED.match(name) or _TENSORRT_LLM.match(name)
    if counted is not None:
        return _counted({key: int(value) for key, value in counted.groupdict().items() if value})
    if (match := _SGLANG.match(name)) is not None:
        rest = {key: int(value) for key, value in _VALUE.findall(match["rest"])}
        return _sglang(match["mode"], int(match["requests"]), rest)
    if (match := _ATOM.match(name)) is not None:
        return _atom(match)
    return None


def server_annotations(trace: Trace) -> ServerAnnotations:
    """The annotated steps of an inference server; empty for other programs."""
    events, rows = trace.events, trace.rows(EventKind.ANNOTATION)
    rows = rows[trace.tracks.kind[events.track[rows]] == TrackKind.HOST_THREAD]
    names, name = unique_inverse(events.name[rows])
    batches = [parse_server_step(trace.strings[string]) for string in names.tolist()]
    is_step = np.array([batch is not None for batch in batches], dtype=bool)[name]
    rows, name = rows[is_step], name[is_step]
    if len(rows):
        time_ns = np.bincount(events.track[rows], weights=events.duration_ns[rows] + 1)
        chosen = events.track[rows] == int(time_ns.argmax())
        rows, name = rows[chosen], name[chosen]
        # Of nested annotations of a step, the outer one tells more.
        chosen = not_overlapping(trace, rows)
        rows, name = rows[chosen], name[chosen]

    def column(field: str) -> Int64:
        values = [-1 if b is None or (v := getattr(b, field)) is None else v for b in batches]
        numbers: Int64 = np.array(values, dtype=np.int64)[name]
        return numbers

    return ServerAnnotations(
        row=rows,
        kind=column("kind").astype(np.uint8),
        **{field: column(field) for field in ServerBatch.__struct_fields__ if field != "kind"},
    )


def _counted(number: dict[str, int]) -> ServerBatch | None:
    """The batch in a name that counts both kinds of requests."""
    prefills, decodes = number["prefills"], number["decodes"]
    if not prefills and not decodes:
        return None
    return ServerBatch(
        kind=_kind(prefills > 0, decodes > 0),
        prefill_requests=prefills,
        prefill_tokens=number.get("prefill_tokens", None if prefills else 0),
        decode_requests=decodes,
        decode_tokens=number.get("decode_tokens", decodes),
        cached_tokens=number.get("cached"),
    )


def _sglang(mode: str, requests: int, rest: dict[str, int]) -> ServerBatch | None:
    """The batch of a forward mode. Steps of a draft model are part of another step."""
    if not requests:
        return None
    if mode in ("DECODE", "TARGET_VERIFY"):
        return ServerBatch(
            kind=StepKind.DECODE,
            prefill_requests=0,
            prefill_tokens=0,
            decode_requests=requests,
            decode_tokens=rest.get("g_sq", requests if mode == "DECODE" else None),
            cached_tokens=rest.get("g_sk"),
        )
    if mode in ("EXTEND", "SPLIT_PREFILL"):
        return ServerBatch(
            kind=StepKind.PREFILL,
            prefill_requests=requests,
            prefill_tokens=rest.get("toks"),
            decode_requests=0,
            decode_tokens=0,
        )
    if mode != "MIXED":
        return None
    return ServerBatch(
        kind=_kind(rest.get("c", 1) > 0, rest.get("g", 1) > 0),
        prefill_requests=rest.get("c"),
        prefill_tokens=rest.get("c_sq"),
        decode_requests=rest.get("g"),
        decode_tokens=rest.get("g_sq"),
        cached_tokens=rest.get("g_sk"),
    )


def _atom(match: re.Match[str]) -> ServerBatch | None:
    requests, tokens = int(match["requests"]), int(match["tokens"])
    if not requests:
        return None
    if match["mode"] == "prefill":
        return ServerBatch(
            kind=StepKind.PREFILL,
            prefill_requests=requests,
            prefill_tokens=tokens,
            decode_requests=0,
            decode_tokens=0,
        )
    rest = {key: int(value) for key, value in _VALUE.findall(match["rest"])}
    prefills = rest.get("p", 0)
    return ServerBatch(
        kind=_kind(prefills > 0, requests > prefills),
        prefill_requests=prefills,
        prefill_tokens=None if prefills else 0,
        decode_requests=requests - prefills,
        decode_tokens=None if prefills else tokens,
        cached_tokens=None if prefills else rest.get("sk"),
        captured_requests=int(match["captured"]) if match["captured"] else None,
    )


def _kind(prefills: bool, decodes: bool) -> StepKind:
    if prefills and decodes:
        return StepKind.MIXED
    return StepKind.PREFILL if prefills else StepKind.DECODE
