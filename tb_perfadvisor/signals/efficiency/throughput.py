"""Tokens and samples per step, from the shapes of embeddings, convolutions and look-ups."""

from __future__ import annotations

import re
from collections import Counter
from math import prod

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.signals.core.devices_in_use import used_devices
from tb_perfadvisor.signals.core.event_names import named
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.device.recomputation import recomputes
from tb_perfadvisor.signals.efficiency.product_flop import launches_work
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.recording.hints import hint_for
from tb_perfadvisor.signals.recording.needs import Need
from tb_perfadvisor.signals.serving.server_steps import server_steps
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.steps.gradient_accumulation import micro_batches
from tb_perfadvisor.signals.work.batch_size import batch_size
from tb_perfadvisor.signals.work.operator_inputs import parse_inputs
from tb_perfadvisor.signals.workload.parts import Part
from tb_perfadvisor.signals.workload.workload import workload
from tb_perfadvisor.trace import EventKind, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in, row_mask

_EMBEDDING = re.compile(r"aten::embedding$")
_IMAGE_CONVOLUTION = re.compile(r"aten::(?:conv[23]d|convolution|_convolution)$")
_ATTENTION = re.compile(r"aten::_?scaled_dot_product_|\w*[Ff]lash_?[Aa]tt")
_IMAGE_RANK = 4
"""Dimensions of a batch of images: samples, channels, height, width. Videos have one more."""
_LOSS = re.compile(
    r"^aten::(cross_entropy_loss|nll_loss_nd|mse_loss|l1_loss|smooth_l1_loss|huber_loss"
    r"|binary_cross_entropy|binary_cross_entropy_with_logits)$"
)
"""Loss functions (aten/src/ATen/native/native_functions.yaml)."""
_PRODUCT = re.compile(r" (?:dot|convolution)\(|gemm|matmul")
_MATRIX = re.compile(r"\[(\d{1,15}),(\d{1,15})\]")


class Throughput(Struct, frozen=True):
    """What one rank processes in a step; None is unknown."""

    tokens_per_step: float | None
    samples_per_step: float | None
    source: str
    """How the known numbers are known; why, if none is known."""


class _Use(Struct, frozen=True):
    """Executions of an operator with equal shapes in the used window."""

    first: tuple[int, ...]
    """Shape of the first input."""
    second: tuple[int, ...]
    count: int


@memoized
def throughput(signals: Signals) -> Throughput:
    """Tokens and samples per step of one rank."""
    found = _of_server(signals) or _from_shapes(signals)
    if found.samples_per_step is None:
        found = replace(found, samples_per_step=samples_per_step(signals))
        if found.tokens_per_step is None and found.samples_per_step is not None:
            found = replace(found, source="Samples are the batch of a forward pass.")
    if signals.options.tokens_per_step is None:
        return found
    tokens = float(signals.options.tokens_per_step)
    return replace(found, tokens_per_step=tokens, source="Tokens per step are your setting.")


def _of_server(signals: Signals) -> Throughput | None:
    """What an inference server's annotations count, if every step states it."""
    steps = server_steps(signals)
    if steps is None or not steps.is_periodic or (steps.tokens < 0).any():
        return None
    tokens = float(steps.tokens.sum()) / signals.steps.count
    return Throughput(tokens, None, "Tokens are those that the server states for each step.")


def _from_shapes(signals: Signals) -> Throughput:
    tokens = _looked_up_tokens(signals)
    if tokens is not None and len(used_devices(signals.trace)) > 1:
        return Throughput(
            None,
            None,
            "The profile does not tell how the devices divide the tokens. Set --tokens-per-step.",
        )
    if tokens is not None:
        source = "Tokens are those that the embedding of the vocabulary looks up."
        return Throughput(tokens, None, source)
    if not (signals.trace.operators.shapes >= 0).any():
        return Throughput(None, None, _without_shapes(signals))
    images = _images(signals)
    if images is not None:
        source = "Samples are the batch of the convolution that reads the images."
        return Throughput(None, images, source)
    if _image_uses(signals):
        return Throughput(
            None, None, "The number of forward passes over the batch in a step is unknown."
        )
    return _from_embeddings(signals)


def _without_shapes(signals: Signals) -> str:
    if signals.trace.source.framework != "pytorch":
        return "The profile does not tell tokens or samples. Set --tokens-per-step."
    hint = hint_for(Need.SHAPES, workload(signals))
    return f"The shapes of the operators were not recorded. {hint}"


def _from_embeddings(signals: Signals) -> Throughput:
    uses = [use for use in _uses(signals, _EMBEDDING) if len(use.first) == 2 and use.second]
    if not uses:
        return Throughput(None, None, "The profile shows no embedding and reads no images.")
    # Tables of positions have fewer indices, and tables of attention biases fewer columns.
    width = max(use.first[1] for use in uses)
    tables = {use.first for use in uses if use.first[1] == width}
    lookups = {
        table: sum(use.count * prod(use.second) for use in uses if use.first == table)
        for table in tables
    }
    table = max(tables, key=lambda table: (lookups[table], table))
    read = [use for use in uses if use.first == table]
    is_sequence = all(len(use.second) == 2 and use.second[1] > 1 for use in read)
    program = workload(signals)
    if not is_sequence and not program.has(Part.SERVER) and not _has_attention(signals):
        return Throughput(None, None, "The embeddings do not look up sequences of tokens.")
    steps = signals.steps.count
    passes = sum(use.count for use in read)
    samples = None
    if passes == steps and all(len(use.second) == 2 for use in read):
        samples = sum(use.count * use.second[0] for use in read) / steps
    source = "Tokens are those that the embedding of the vocabulary looks up."
    return Throughput(lookups[table] / steps, samples, source)


def _images(signals: Signals) -> float | None:
    """Images or videos per step, if it is known how often the model reads the batch."""
    uses = [use for use in _image_uses(signals) if use.first[1] == _fewest_channels(signals)]
    batches = {use.first[0] for use in uses}
    if len(batches) != 1 or batch_size(signals) not in batches:
        return None
    passes = sum(use.count for use in uses) / signals.steps.count
    return batches.pop() * passes if passes in (1, micro_batches(signals)) else None


def _fewest_channels(signals: Signals) -> int:
    return min((use.first[1] for use in _image_uses(signals)), default=0)


@memoized
def _image_uses(signals: Signals) -> tuple[_Use, ...]:
    return tuple(
        use
        for use in _uses(signals, _IMAGE_CONVOLUTION)
        if len(use.first) == len(use.second) >= _IMAGE_RANK
    )


def _has_attention(signals: Signals) -> bool:
    names = distinct(signals.trace.events.name[signals.trace.operators.row]).tolist()
    return any(_ATTENTION.match(signals.trace.strings[name]) for name in names)


def _uses(signals: Signals, pattern: re.Pattern[str]) -> list[_Use]:
    """Outermost operators of some names in the used window, except recomputed ones."""
    trace = signals.trace
    table, events = trace.operators, trace.events
    names = events.name[table.row]
    wanted = [name for name in distinct(names).tolist() if pattern.match(trace.strings[name])]
    slot = np.flatnonzero(
        is_in(names, wanted) & (table.shapes >= 0) & (signals.steps.owner[table.row] >= 0)
    )
    is_inside = has_ancestor(events.parent, table.row[slot], row_mask(len(events), table.row[slot]))
    slot = slot[~is_inside]
    is_used = ~recomputes(signals, table.row[slot])
    if signals.device.index is not None:
        is_used &= launches_work(signals, table.row[slot])
    slot = slot[is_used]
    if not slot.size:
        return []
    first, group = group_rows(table.shapes[slot], table.dtypes[slot])
    uses = []
    for index, count in zip(slot[first].tolist(), np.bincount(group).tolist(), strict=True):
        shapes, dtypes = (trace.text(int(c[index])) for c in (table.shapes, table.dtypes))
        try:
            tensors = parse_inputs(shapes, dtypes, "").tensors
        except (ValueError, TypeError, KeyError):
            continue
        if len(tensors) >= 2 and tensors[0] is not None and tensors[1] is not None:
            uses.append(_Use(tensors[0].shape, tensors[1].shape, count))
    return uses


@memoized
def samples_per_step(signals: Signals) -> int | None:
    """Samples that one rank processes in each used step; None if the profile does not tell.

    The batch size is that of one forward pass, so each step must have exactly one: it fetches one
    batch, or computes one loss.
    """
    if not len(signals.steps):
        return None
    batch = batch_size(signals)
    is_single = _runs_once_per_step(signals, (EventKind.INPUT_WAIT,)) or _runs_once_per_step(
        signals, (EventKind.OPERATOR,), _LOSS
    )
    return batch if is_single else None


def _runs_once_per_step(
    signals: Signals, kinds: tuple[EventKind, ...], pattern: re.Pattern[str] | None = None
) -> bool:
    """Whether as many such events as steps start in the used window."""
    trace = signals.trace
    rows = trace.rows(*kinds)
    rows = signals.steps.own(rows)
    if pattern is not None:
        rows = rows[named(trace, rows, pattern)]
    return len(rows) == len(signals.steps)


def _looked_up_tokens(signals: Signals) -> float | None:
    """Tokens per step of an XLA program on the profile's device; None if unknown.

    They are the rows that the vocabulary's embedding looks up. Other tables, such as the nodes of a
    graph or the items of a recommender, look the same. But a vocabulary has an output layer as
    well: a product with a matrix of the table's size.
    """
    if not signals.trace.lookups or signals.device.index is None:
        return None
    multiplied, executions = _multiplied_matrices(signals), _executions(signals)
    tokens: Counter[tuple[int, int]] = Counter()
    for lookup in signals.trace.lookups:
        table = (lookup.rows, lookup.width)
        if table in multiplied:
            tokens[table] += lookup.count * executions[lookup.module, lookup.operation]
    return max(tokens.values(), default=0) / signals.steps.count or None


def _multiplied_matrices(signals: Signals) -> set[tuple[int, int]]:
    """The sizes of the matrices that products read or write, in either order of dimensions."""
    hlo = signals.trace.hlo
    texts = signals.trace.texts(distinct(np.concatenate((hlo.product, hlo.text))))
    sizes = {
        (int(rows), int(columns))
        for text in texts
        if _PRODUCT.search(text)
        for rows, columns in _MATRIX.findall(text)
    }
    return sizes | {(columns, rows) for rows, columns in sizes}


def _executions(signals: Signals) -> Counter[tuple[str, str]]:
    """How often the device runs each operation in the used steps, by module and name."""
    trace = signals.trace
    links = trace.hlo_events
    track = trace.events.track[links.row]
    is_counted = links.op >= 0
    is_counted &= trace.tracks.kind[track] == TrackKind.DEVICE_STREAM
    is_counted &= trace.tracks.device[track] == signals.device.index
    is_counted &= signals.steps.owner[links.row] >= 0
    count = np.bincount(links.op[is_counted])
    executions: Counter[tuple[str, str]] = Counter()
    for op in np.flatnonzero(count).tolist():
        name = trace.text(int(trace.hlo.name[op])).lstrip("%")
        executions[trace.text(int(trace.hlo.module[op])), name] += int(count[op])
    return executions
