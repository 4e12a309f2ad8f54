"""Splits a log into records.

A record is a line `V0102 15:04:05.123456 PROCESS FILE:LINE] {JSON}`, and lines of its payload, each
with a tab in front. Source: TorchLogsFormatter and trace_structured in torch/_logging/_internal.py.
Lines of other loggers may stand in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from tb_perfadvisor.patterns import regex

# Without the format's reader, nothing that inflates is needed.
if TYPE_CHECKING:
    from tb_perfadvisor.ingest.files.compression import Inflated

# Launchers put the rank in front when they collect what programs print.
_HEADER: Final = regex(
    rb"^(?:\[[^\]\n]{1,40}\]:? ?)?[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d+ (\d{1,19}) "
    rb"[^\]\n]{1,500}:\d+\] (?=\{)",
    re.MULTILINE,
)
_BLOCK_BYTES: Final = 4 << 20
MAX_RECORD_BYTES: Final = 16 << 20
"""Headers of records have up to 100 KB, and what is read of payloads less. Graphs and generated
code, which are skipped, may be larger."""


class LogRecord(Struct, frozen=True):
    """One record."""

    process: int
    header: bytes
    """JSON."""
    rest: bytes
    """The lines after the header, as they are in the file."""

    @property
    def payload(self) -> bytes:
        """The lines of the payload, without their tabs."""
        lines = self.rest.split(b"\n")
        return b"\n".join(line[1:] for line in lines if line.startswith(b"\t"))


def starts_a_log(head: bytes) -> bool:
    """Whether the beginning of a file has a record that only torch.compile writes."""
    return any(
        _OWN.match(head, found.end()) is not None for found in _HEADER.finditer(head[:65_536])
    )


_OWN: Final = regex(
    rb'\{"(?:chromium_event|dynamo_start|str|describe_(?:storage|tensor|source)|artifact'
    rb"|compilation_metrics|dynamo_output_graph|stack|inductor_\w+|aot_\w+|compiled_autograd_\w+"
    rb'|create_\w*symbol|propagate_real_tensors\w*|exported_program|missing_fake_kernel)"\s*:'
)


def read_records(stream: Inflated) -> Iterator[LogRecord]:
    """The records of a log, in bounded memory: of a longer record, only the beginning is kept."""
    pending = b""
    while True:
        block = stream.read(_BLOCK_BYTES)
        text = pending + block
        starts = list(_HEADER.finditer(text))
        # Whether the last record, and a header at the end, go on in the next block is unknown.
        for found, following in pairwise(starts):
            yield _record(text, found, following.start())
        if not block:
            if starts:
                yield _record(text, starts[-1], len(text))
            return
        kept = starts[-1].start() if starts else text.rfind(b"\n") + 1
        pending = text[kept:]
        if len(pending) > MAX_RECORD_BYTES:
            last_line = pending[pending.rfind(b"\n") :]  # the next record may begin in it
            pending = pending[: MAX_RECORD_BYTES // 2] + last_line[: MAX_RECORD_BYTES // 2]


def _record(text: bytes, found: re.Match[bytes], end: int) -> LogRecord:
    line_end = text.find(b"\n", found.end(), end)
    if line_end < 0:
        line_end = end
    return LogRecord(int(found[1]), text[found.end() : line_end], text[line_end + 1 : end])
