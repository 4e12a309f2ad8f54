"""Known causes of waits for the device, and what to write instead.

Sources: PyTorch documentation, "Performance Tuning Guide", `torch.nonzero`,
`torch.use_deterministic_algorithms`; aten/src/ATen/native/TensorAdvancedIndexing.cpp, where the
deterministic `scatter_add_` copies strides from the host; torch/amp/grad_scaler.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from tb_perfadvisor.signals.host.wait_call_sites import WaitCallSite
from tb_perfadvisor.trace import CopyDirection


class SynchronizationCause(Struct, frozen=True):
    """A known cause of a wait."""

    label: str
    """What the program does, as the end of a sentence."""
    matches: Callable[[WaitCallSite], bool]
    changes: tuple[str, ...]
    """What to change instead."""


def cause_of(site: WaitCallSite) -> SynchronizationCause | None:
    """The first cause that matches a call site; None if it is unknown."""
    return next((cause for cause in CAUSES if cause.matches(site)), None)


def changes_for(sites: tuple[WaitCallSite, ...], most: int) -> tuple[str, ...]:
    """What to change against the causes of the call sites, in their order.

    Args:
        sites: The call sites, the costliest first.
        most: The most causes to give advice for.
    """
    known = (cause_of(site) for site in sites)
    labels = list(dict.fromkeys(cause.label for cause in known if cause is not None))[:most]
    changes = [
        change
        for label in labels
        for cause in CAUSES
        if cause.label == label
        for change in cause.changes
    ]
    return tuple(dict.fromkeys(changes))


def _has(*operators: str) -> Callable[[WaitCallSite], bool]:
    return lambda site: not set(operators).isdisjoint(site.operators)


def _copies(direction: CopyDirection) -> Callable[[WaitCallSite], bool]:
    return lambda site: site.copies == direction and "aten::copy_" in site.operators


def _reads_jax_array(functions: str) -> Callable[[WaitCallSite], bool]:
    """Whether the frame around a wait is one of some functions of JAX that read an array."""
    pattern = re.compile(rf"^\$(array|array_methods|api)\.py:\d+ ({functions})$")
    return lambda site: bool(pattern.match(site.frame))


def _is_deterministic_gather(site: WaitCallSite) -> bool:
    # A gather that is not deterministic scatters with atomics and needs nothing from the host.
    from_host = site.copies == CopyDirection.HOST_TO_DEVICE
    return site.node.startswith("GatherBackward") and (
        from_host or "aten::index_put_" in site.operators
    )


_indexes = _has("aten::index", "aten::index_put_", "aten::_index_put_impl_")


CAUSES: tuple[SynchronizationCause, ...] = (
    SynchronizationCause(
        "torch.gather's deterministic backward",
        _is_deterministic_gather,
        ("indexing-without-gather",),
    ),
    SynchronizationCause(
        "GradScaler's check for infinities",
        lambda site: site.checks_gradients or "amp/grad_scaler.py(" in site.frame,
        ("bfloat16", "no-loss-scaling", "fused-optimizer"),
    ),
    SynchronizationCause(
        "printing tensors",
        lambda site: "torch/_tensor_str.py(" in site.frame,
        ("no-printed-tensors",),
    ),
    SynchronizationCause(
        "float(), int() or .item()",
        _reads_jax_array(r"__(float|int|index|complex)__|tolist|_item"),
        ("read-arrays-rarely",),
    ),
    SynchronizationCause(
        "arrays as conditions (if x:)",
        _reads_jax_array("__bool__"),
        ("device-decisions",),
    ),
    SynchronizationCause(
        "printing arrays",
        _reads_jax_array("__(format|str|repr)__"),
        ("read-arrays-rarely",),
    ),
    SynchronizationCause(
        "jax.device_get()", _reads_jax_array("device_get"), ("read-arrays-rarely",)
    ),
    SynchronizationCause(
        "reading results (float(), jax.device_get(), np.asarray())",
        lambda site: "np.asarray(jax.Array)" in site.calls,
        ("read-arrays-rarely",),
    ),
    SynchronizationCause(
        "block_until_ready()",
        lambda site: any("block_until_ready" in call for call in site.calls),
        ("no-block-until-ready",),
    ),
    SynchronizationCause(
        "masked_select",
        _has("aten::masked_select"),
        ("sum-without-selection",),
    ),
    SynchronizationCause(
        "x[mask]",
        lambda site: _indexes(site) and "aten::nonzero" in site.operators,
        ("masks-without-indexing",),
    ),
    SynchronizationCause(
        "indices on the host",
        lambda site: _indexes(site) and site.copies == CopyDirection.HOST_TO_DEVICE,
        ("indices-on-device",),
    ),
    SynchronizationCause(
        "the backward of indexing (index_put_)",
        lambda site: bool(site.node) and _indexes(site),
        ("index-select",),
    ),
    SynchronizationCause(
        "nonzero",
        _has("aten::nonzero"),
        ("static-nonzero",),
    ),
    SynchronizationCause(
        "unique",
        _has("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"),
        ("unique-on-host",),
    ),
    SynchronizationCause(
        "repeat_interleave",
        _has("aten::repeat_interleave"),
        ("known-length",),
    ),
    SynchronizationCause(
        "tensors as conditions (if x:)",
        _has("aten::is_nonzero"),
        ("device-decisions",),
    ),
    SynchronizationCause(
        ".item()",
        _has("aten::item", "aten::_local_scalar_dense"),
        ("read-rarely", "overlapped-schedule"),
    ),
    SynchronizationCause(
        ".cpu()",
        _copies(CopyDirection.DEVICE_TO_HOST),
        ("results-to-pinned-memory", "overlapped-schedule"),
    ),
    SynchronizationCause(
        "host tensors (.to(device))",
        _copies(CopyDirection.HOST_TO_DEVICE),
        ("constants-on-device", "pinned-memory"),
    ),
    SynchronizationCause(
        "torch.cuda.synchronize()",
        lambda site: not site.operators and site.calls == ("cudaDeviceSynchronize",),
        ("timing-with-events",),
    ),
)
