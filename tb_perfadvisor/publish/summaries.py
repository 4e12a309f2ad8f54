"""Encodes reports as TensorBoard events: short texts, and key numbers as scalars."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Mapping, Sequence

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.scalar import metadata as scalar_metadata
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from tb_perfadvisor.contract import model
from tb_perfadvisor.report.formats.markdown import (
    escape,
    finding_blocks,
    head_blocks,
    notes_blocks,
)
from tb_perfadvisor.report.formats.wording import branches_of

MOST_TEXT_BYTES = 12 * 1024
"""The uploader to Vertex AI drops tensors above 16 KiB; leave room for what wraps a text."""
_CUT = "*Too long for this view. `perfadvisor analyze` shows the rest.*"


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
