"""Writes findings as Text and Scalar summaries, for TensorBoard servers without plugins.

They go to `RUN/perf_advisor/`, a directory that nothing else uses. A second event file in the
directory of a training run would make some readers ignore the first one, so the files of a run are
never touched.
"""

from __future__ import annotations

import io
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from tb_perfadvisor.contract import model
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.files.containment import LeadsOutError, resolve_inside
from tb_perfadvisor.ingest.files.tree import is_url, local_path
from tb_perfadvisor.ingest.recordings import split_step
from tb_perfadvisor.output_files import replace_file
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import printable_name
from tb_perfadvisor.report.formats.markdown import (
    escape,
    finding_blocks,
    head_blocks,
    notes_blocks,
)
from tb_perfadvisor.report.formats.wording import branches_of
from tb_perfadvisor.report.report import Report

DIRECTORY = "perf_advisor"
_SESSION = regex(r"(?:^|/)plugins/profile(?:/.*)?$")
_NO_PATHS: Mapping[str, str] = MappingProxyType({})
_PREFIX, _SUFFIX = "events.out.tfevents.", ".perf_advisor"
MOST_TEXT_BYTES = 12 * 1024
"""The uploader to Vertex AI drops tensors above 16 KiB; leave room for what wraps a text."""
_CUT = "*Too long for this view. `perfadvisor analyze` shows the rest.*"


def publish(
    reports: Iterable[Report],
    logdir: str,
    system_paths: Mapping[str, str] = _NO_PATHS,
    warn: Callable[[str], None] | None = None,
) -> list[str]:
    """Write reports below a log directory, replacing what was published before.

    Nothing is written to directories to which links lead out of it.

    Reports are of captures of `logdir`, a local path or any URL that fsspec can open.
    `system_paths` has the path by which the system knows a file whose name cannot be printed.
    `warn` is called for each run that a link leads to. Returned are the directories written to,
    relative to the logdir.

    Raises:
        UsageError: If they cannot be written, or links lead out to all of them.
    """
    by_run: dict[str, list[Report]] = defaultdict(list)
    for report in reports:
        by_run[_run_directory(report, system_paths)].append(report)
    filesystem, root = _open(logdir)
    written, refused = [], []
    for run, reports_of_run in sorted(by_run.items()):
        directory = f"{run}/{DIRECTORY}" if run else DIRECTORY
        content = encode_events(sorted(reports_of_run, key=lambda report: report.session))
        try:
            place = f"{root}/{directory}"
            if isinstance(filesystem, LocalFileSystem):  # object stores have no directories
                place = _made_inside(root, run)
            _replace(filesystem, place, content)
        except LeadsOutError:
            refused.append(printable_name(directory))
        except OSError as error:
            raise UsageError(
                f"cannot be written: {error.strerror or error}.",
                where=printable_name(directory),
                hint="Publishing needs write access to the log directory.",
            ) from error
        else:
            written.append(printable_name(directory))
    for where in refused:
        refusal = UsageError(
            "is not written, because a link leads to it out of the log directory.",
            where=where,
            hint="Publish in the directory that the link names.",
        )
        if not written:
            raise refusal
        if warn is not None:
            warn(str(refusal))
    return written


def _made_inside(root: str, run: str) -> str:
    """The directory for a run below a local root, without links in its path.

    Raises:
        LeadsOutError: If it lies elsewhere.
        OSError: If it cannot be made.
    """
    boundary = os.path.realpath(root)
    directory = Path(resolve_inside(f"{root}/{run}", boundary), DIRECTORY)
    directory.mkdir(exist_ok=True)
    return resolve_inside(str(directory), boundary)


def _run_directory(report: Report, system_paths: Mapping[str, str]) -> str:
    """The directory of a report's run, relative to the logdir; empty for the logdir itself."""
    path = report.workers[report.reference_worker].file
    directory = _SESSION.sub("", system_paths.get(path, path).rpartition("/")[0])
    # The recordings of a run, each in a directory named after its step, are the run's steps.
    run, step = split_step(directory)
    return directory if step is None else run.removeprefix(".")


def _open(logdir: str) -> tuple[Any, str]:
    if is_url(logdir):
        from tb_perfadvisor.ingest.files.remote.store import Store

        store = Store(logdir)
        return store.filesystem, store.base.rstrip("/")
    return LocalFileSystem(), local_path(logdir).rstrip(f"/{os.sep}")


def _replace(filesystem: Any, directory: str, content: bytes) -> None:
    """Write a new event file, then remove our older ones, so that readers always find one."""
    filesystem.invalidate_cache()
    try:
        paths = filesystem.ls(directory, detail=False)
    except FileNotFoundError:
        paths = []
    names = [str(path).rpartition("/")[2] for path in paths]
    ours = [name for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    times = [name[len(_PREFIX) : -len(_SUFFIX)] for name in ours]
    seconds = [int(text) for text in times if text.isdecimal()]
    # Readers read files in the order of their names.
    now = max([int(time.time()), *(second + 1 for second in seconds)])
    path = f"{directory}/{_PREFIX}{now:010d}{_SUFFIX}"
    if isinstance(filesystem, LocalFileSystem):
        replace_file(Path(path), [content])
    else:
        filesystem.pipe_file(path, content)
    for name in ours:
        filesystem.rm_file(f"{directory}/{name}")


def encode_events(reports: Sequence[model.Report]) -> bytes:
    """Encode an event file with the reports of one run as steps 0, 1, ….

    Reports are ordered by time of recording.
    """
    content = io.BytesIO()
    writer = RecordWriter(content)
    first = event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2")
    writer.write(first.SerializeToString())
    for step, report in enumerate(reports):
        summary = summary_pb2.Summary(value=[*_texts(report), *_scalars(scalars(report))])
        event = event_pb2.Event(wall_time=time.time(), step=step, summary=summary)
        writer.write(event.SerializeToString())
    return content.getvalue()


def fit(blocks: Iterable[str], most_bytes: int = MOST_TEXT_BYTES) -> str:
    """As many blocks of Markdown as fit, and a note if some do not."""
    remaining_bytes = most_bytes - len(_CUT.encode()) - 2
    fitting: list[str] = []
    for block in blocks:
        remaining_bytes -= len(block.encode()) + 2
        if remaining_bytes < 0:
            # A later block may fit, but would lack its context.
            fitting.append(_CUT)
            break
        fitting.append(block)
    return "\n\n".join(fitting)


def scalars(report: model.Report) -> dict[str, float]:
    """The known key numbers by tag."""
    overview, combined = report.overview, report.combined_saving
    step_ns = overview.step_time_ns
    shares = {
        "device_compute_pct": overview.device_compute_share,
        "input_wait_pct": overview.input_wait_share,
        "exposed_communication_pct": overview.exposed_communication_share,
        "exposed_copies_pct": overview.exposed_copy_share,
        "between_steps_pct": overview.between_steps_share,
        "mfu_pct": overview.mfu,
        "possible_saving_pct": combined.share_expected if combined is not None else 0.0,
    }
    values = {name: 100 * share for name, share in shares.items() if share is not None}
    if step_ns is not None:
        values["step_time_ms"] = step_ns / 1e6
    if overview.tokens_per_s is not None:
        values["tokens_per_s"] = overview.tokens_per_s
    values["findings"] = float(len(report.findings))
    return {f"perf_advisor/{name}": value for name, value in values.items()}


def _texts(report: model.Report) -> list[summary_pb2.Summary.Value]:
    entries = [entry for branch in branches_of(report) for entry in (branch.entry, *branch.refined)]
    listed = [
        f"- {entry.number}. **{escape(entry.title)}** "
        f"(`{entry.finding.rule_id}`, {entry.finding.severity})"
        for entry in entries
    ]
    blocks = [*head_blocks(report), *(["\n".join(listed)] if listed else []), *notes_blocks(report)]
    texts = [_text("perf_advisor/summary", fit(blocks), "What matters most, and the key numbers.")]
    for entry in entries:
        finding = entry.finding
        text = fit(finding_blocks(entry, report, finding.remedies))
        texts.append(_text(f"perf_advisor/findings/{finding.rule_id}", text, finding.title))
    return texts


def _text(tag: str, text: str, description: str) -> summary_pb2.Summary.Value:
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    return summary_pb2.Summary.Value(
        tag=tag,
        metadata=text_metadata.create_summary_metadata(tag, description),
        tensor=tensor_pb2.TensorProto(
            dtype=types_pb2.DT_STRING, tensor_shape=shape, string_val=[text.encode()]
        ),
    )


def _scalars(values: Mapping[str, float]) -> list[summary_pb2.Summary.Value]:
    return [
        summary_pb2.Summary.Value(
            tag=tag,
            metadata=scalar_metadata.create_summary_metadata(tag, ""),
            tensor=tensor_pb2.TensorProto(
                dtype=types_pb2.DT_FLOAT,
                tensor_shape=tensor_shape_pb2.TensorShapeProto(),
                float_val=[value],
            ),
        )
        for tag, value in values.items()
    ]
