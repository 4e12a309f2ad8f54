"""Reads the tool results of one host as a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import BinaryIO

from msgspec.structs import replace

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.tf_tools import tool_file
from tb_perfadvisor.ingest.tf_tools.contents import Contents
from tb_perfadvisor.ingest.tf_tools.documents import read_document
from tb_perfadvisor.ingest.tf_tools.layout import add_steps
from tb_perfadvisor.ingest.tf_tools.merge import Merged, Result, merge
from tb_perfadvisor.ingest.tf_tools.protos import read_proto
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Assembler, Source, Totals, Trace
from tb_perfadvisor.units import format_bytes, format_share

# The profiler limits its output: the largest known results are a few megabytes.
_LARGEST_BYTES = 256 << 20

Opener = Callable[[], AbstractContextManager[BinaryIO]]


def read_tf_tools(files: Mapping[str, Opener], source: Source) -> Trace:
    """Read the tool results of one host.

    `files` has the opener of each path; `tool_file` must know the names. `source` has run, session
    and host; the other fields are filled in here.
    """
    merged, notes = _read_files(files, where=source.path)
    contents = merged.contents
    assembler = Assembler()
    devices = add_steps(assembler, contents)
    filled = replace(
        source,
        path=merged.path,
        format="tf-tools",
        framework="tensorflow",
        producer="TensorFlow's profiler",
        has_shapes=False,
        has_stacks=False,
        has_memory=contents.peak_allocated_bytes is not None,
    )
    return assembler.finish(
        filled,
        devices=devices,
        notes=(_SUMMED, *notes, *merged.notes, *_notes(merged)),
        totals=Totals(
            shows=contents.shows,
            precision=contents.precision,
            kernels=contents.kernels,
            operators=contents.operators,
            input_stages=contents.input_stages,
            peak_allocated_bytes=contents.peak_allocated_bytes,
            matrix_unit_share=contents.matrix_unit_share,
            remedy=_REMEDY,
        ),
    )


def _read_files(files: Mapping[str, Opener], *, where: str) -> tuple[Merged, list[Note]]:
    """Read and merge the results of one host; files that cannot be read become notes."""
    results: list[Result] = []
    notes: list[Note] = []
    errors: list[PerfAdvisorError] = []
    for path, opener in files.items():
        try:
            results.append(_read_file(path, opener))
        except PerfAdvisorError as error:
            errors.append(error)
            message = f"{path} was left out: {error.message}"
            notes.append(Note("unsupported-file", "warning", message, error.hint))
    if errors and not any(result.contents.steps for result in results):
        raise errors[0]
    return merge(results, where=where), notes


def _read_file(path: str, opener: Opener) -> Result:
    file = tool_file(path)
    if file is None:
        raise UnreadableProfileError("this is not a tool result.", where=path)
    with opener() as stream:
        data = Inflated(stream, path).read(_LARGEST_BYTES + 1)
    if not data:
        raise UnreadableProfileError("the file is empty or damaged.", where=path)
    if len(data) > _LARGEST_BYTES:
        limit = format_bytes(_LARGEST_BYTES)
        raise UnreadableProfileError(f"the file is larger than {limit}.", where=path)
    contents: Contents = (
        read_proto(file.tool, data, where=path)
        if file.form == "pb"
        else read_document(file.tool, data, where=path)
    )
    return Result(path, file, contents)


_REMEDY = (
    "Record again with TensorFlow 2.4 or later, whose profiler keeps every event (.xplane.pb)."
)
_SUMMED = Note(
    "summed-results",
    "warning",
    "These files contain sums per step instead of events. The times are exact, but the order of "
    "events and the time between steps were not recorded: positions on the timeline are arbitrary. "
    "Kernels and operators cover the whole recording, on all devices.",
    _REMEDY,
)


def _notes(merged: Merged) -> list[Note]:
    """Notes on the profiler's messages and on figures that no other view shows."""
    contents = merged.contents
    notes = [
        Note("profiler-warning", "warning", f"The profiler reported: {text[:500]}")
        for text in contents.messages
    ]
    figures = [f"{format_share(figure.share)} {figure.label}" for figure in contents.figures]
    if contents.matrix_unit_share is not None:
        figures.insert(0, f"{format_share(contents.matrix_unit_share)} use of the matrix units")
    if figures:
        notes.append(
            Note(
                "recorded-figures",
                "info",
                f"The profiler states for the whole recording: {', '.join(figures)}.",
            )
        )
    return notes
