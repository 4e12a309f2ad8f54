"""A table of operations that work on padding."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.tpu.fitting_sizes import FittedOperation
from tb_perfadvisor.signals.tpu.padding import OperationPadding
from tb_perfadvisor.trace.hlo_text import Shape


def describe_array(shape: Shape) -> str:
    """A shape and its misfits: `bf16[100,30] (30 is not a multiple of 128)`."""
    misfits = ", ".join(f"{size} is not a multiple of {tile}" for _, size, tile in shape.misfits)
    return f"{shape} ({misfits})" if misfits else str(shape)


def padding_table(
    signals: Signals, padded: Sequence[OperationPadding], fitted: Sequence[FittedOperation]
) -> Table:
    """Operations that work on padding, most padding first.

    Args:
        signals: The worker's facts.
        padded: The operations.
        fitted: Those that other sizes make faster.
    """
    hlo, text = signals.trace.hlo, signals.trace.text
    by_op = {found.op: found for found in fitted}
    return Table(
        "Operations that work on padding",
        (
            Column("op", "Operation"),
            Column("shape", "Array with most padding"),
            Column("fits", "Padded to"),
            Column("of", "What is padded"),
            Column("share", "Share that is padding", "share"),
            Column("empty", "Matrix unit left empty", "share"),
            Column("padding_bytes", "Padding moved", "bytes"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
            Column("size", "Size that fits"),
            Column("saved_ns", "Time saved, by the model", "ns"),
            Column("source", "Source line"),
        ),
        tuple(
            (
                text(int(hlo.name[operation.op])),
                describe_array(operation.padding.worst_array),
                str(
                    replace(
                        operation.padding.worst_array,
                        dims=operation.padding.worst_array.padded_dims,
                    )
                ),
                "multiplications" if operation.padding.is_product else "bytes",
                operation.padding.share,
                operation.padding.share if operation.padding.is_product else None,
                operation.padding.padding_bytes * operation.count,
                operation.count,
                operation.total_ns,
                _size(by_op.get(operation.op)),
                _saved_ns(by_op.get(operation.op)),
                text(int(hlo.source_line[operation.op])) or None,
            )
            for operation in padded
        ),
    )


def _size(found: FittedOperation | None) -> str | None:
    if found is None:
        return None
    return f"{found.size.dimension} {found.size.size} → {found.size.fits}".strip()


def _saved_ns(found: FittedOperation | None) -> int | None:
    return None if found is None else round(found.saved_ns)
