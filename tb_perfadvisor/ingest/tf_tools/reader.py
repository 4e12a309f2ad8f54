"""The results of one host as a trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import BinaryIO

from msgspec.structs import replace

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.files.compression import inflate_head
from tb_perfadvisor.ingest.tf_tools.contents import Contents
from tb_perfadvisor.ingest.tf_tools.documents import read_document
from tb_perfadvisor.ingest.tf_tools.layout import add_steps
from tb_perfadvisor.ingest.tf_tools.merge import Merged, Result, merge
from tb_perfadvisor.ingest.tf_tools.naming import tool_file
from tb_perfadvisor.ingest.tf_tools.protos import read_proto
from tb_perfadvisor.trace import Assembler, Note, Source, Totals, Trace
from tb_perfadvisor.units import format_bytes, format_share

# The profiler caps what it writes: the largest results seen take some megabytes.
_LARGEST_BYTES = 256 << 20

Opener = Callable[[], AbstractContextManager[BinaryIO]]


def read_tf_tools(files: Mapping[str, Opener], source: Source) -> Trace:
    """Read the tool results of one host.

    Args:
        files: By path, each of a name that `tool_file` knows: what opens it.
        source: Run, session and host; the rest is filled in here.

    Raises:
        UnreadableProfileError: When no file has the times of steps.
    """
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
    if errors and not any(one.contents.steps for one in results):
        raise errors[0]
    merged = merge(results, where=source.path)
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


def _read_file(path: str, opener: Opener) -> Result:
    file = tool_file(path)
    if file is None:
        raise UnreadableProfileError("this is no tool's result.", where=path)
    with opener() as stream:
        stored = stream.read(_LARGEST_BYTES + 1)
    data = inflate_head(stored, _LARGEST_BYTES + 1)
    if not data:
        raise UnreadableProfileError("the file is empty or damaged.", where=path)
    if len(data) > _LARGEST_BYTES:
        limit = format_bytes(_LARGEST_BYTES)
        raise UnreadableProfileError(f"the file is larger than {limit}.", where=path)
    contents: Contents = (
        read_proto(file.tool, data, where=path)
        if file.form == "pb"
        else read_document(file.tool, data.decode("utf-8", "replace"), where=path)
    )
    return Result(path, file, contents)


_REMEDY = (
    "Record again with TensorFlow 2.4 or later, whose profiler keeps every event (.xplane.pb)."
)
_SUMMED = Note(
    "summed-results",
    "warning",
    "TensorFlow's profiler added these times up by step and cause before it wrote them. How long "
    "each cause took is exact; in which order, and what ran between the steps, is in no file: "
    "places on the time line mean nothing. Kernels and operators are of the whole recording, on "
    "all devices.",
    _REMEDY,
)


def _notes(merged: Merged) -> list[Note]:
    """What the profiler itself said, and figures of it that have no other place."""
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
                f"Of the whole recording the profiler states: {', '.join(figures)}.",
            )
        )
    return notes
