"""Recordings of other tools that often lie beside profiles: named and refused, never read.

A database or a pickle is recognized by words in its first bytes. Nothing of it is executed: a
pickle is a program.
"""

from __future__ import annotations

import re

from msgspec import Struct

from tb_perfadvisor.ingest.format import Sniffed
from tb_perfadvisor.patterns import regex

_NSYS = "Export it, and analyze the export: `nsys export --type sqlite FILE.nsys-rep`."
_ROCPROF = (
    "Record the program with torch.profiler, which uses the same AMD libraries, or JAX's profiler."
)


class _Recorder(Struct, frozen=True):
    """A tool's files."""

    what: str
    """The end of the sentence "this is …"."""
    hint: str
    name: re.Pattern[str] | None = None
    """Names that only this tool's files have."""
    content: re.Pattern[bytes] | None = None
    """What only this tool writes near the start of a file."""

    @property
    def sniffed(self) -> Sniffed:
        """A file that no format can read."""
        return Sniffed(None, f"this is {self.what}. {self.hint}")


_RECORDERS = (
    _Recorder(
        "a dump of PyTorch's flight recorder: the last collectives of one rank, without kernels "
        "or steps",
        "For a hang, compare the ranks with `torchfrtrace`; for speed, record with torch.profiler.",
        regex(r"(?:^|/)(?:nccl_trace|comm_lib_trace)_rank_\d+(?:\.json|\.pickle|\.pkl)?$"),
        # A pickle, or JSON. Every version writes the first two words of these.
        regex(
            rb"\A(?=\x80[\x02-\x05]|\s*\{)(?=.*?(?:pg_config|nccl_version|comm_lib_version))"
            rb".*?(?:collective_seq_id|p2p_seq_id|pg_status|nccl_comm_state|profiling_name)",
            re.DOTALL,
        ),
    ),
    _Recorder("a recording of Nsight Systems", _NSYS, regex(r"\.(?:nsys-rep|qdrep|qdstrm)$")),
    _Recorder(
        "a recording of Nsight Compute: counters of single kernels, without the program's time",
        "Use it for one kernel that Perf Advisor names; for the whole program, record with "
        "torch.profiler.",
        regex(r"\.(?:ncu-rep|nsight-cuprof-report)$"),
    ),
    _Recorder(
        "a database of AMD's rocprof",
        _ROCPROF,
        regex(r"\.rocpd$"),
        regex(
            rb"\ASQLite format 3\0.*?(?:rocpd_|rocprofiler|kernel_dispatch|HIP_API|HSA_API"
            rb"|CREATE TABLE [^\0]{0,80}(?:COPY|KERNEL|OPS)\b)",
            re.DOTALL,
        ),
    ),
    _Recorder(
        "a result of AMD's rocprof",
        _ROCPROF,
        None,
        regex(
            rb'"rocprofiler-sdk-tool"\s*:|"name"\s*:\s*"(?:\d+ )?CPU (?:HIP|HSA) API"'
            rb'|\A"?Kind"?,"?(?:Agent_Id|Domain|Operation)|\A"?Name"?,"?Calls"?,"?TotalDurationNs'
            rb'|\A"?(?:Index|Domain)"?,"?(?:KernelName|Function)',
        ),
    ),
    _Recorder(
        "a trace of Perfetto, as rocprofv3 and rocprof-sys write it",
        _ROCPROF,
        regex(r"\.(?:pftrace|perfetto-trace)$"),
    ),
)

LOOKED_INTO = regex(
    r"(?:^|/)(?:nccl_trace|comm_lib_trace)_rank_\d+$"
    r"|\.(?:db|rocpd|nsys-rep|qdrep|qdstrm|ncu-rep|nsight-cuprof-report|pftrace"
    r"|perfetto-trace)$"
    r"|(?:^|[/_])(?:results|kernel_trace|kernel_stats|hip_api_trace|hip_stats|hsa_stats"
    r"|memory_copy_trace)(?:\.stats)?\.csv$"
)
"""Names of files that are looked into because other tools write them."""


def by_name(path: str) -> Sniffed | None:
    """What a file is whose name only one tool gives; None for all others."""
    for recorder in _RECORDERS:
        if recorder.name is not None and recorder.name.search(path):
            return recorder.sniffed
    return None


def by_content(head: bytes) -> Sniffed | None:
    """What a file is by its first bytes; None if no tool is recognized."""
    for recorder in _RECORDERS:
        if recorder.content is not None and recorder.content.search(head):
            return recorder.sniffed
    return None
