"""Known causes of waits for the device, and what to write instead.

Sources: PyTorch documentation, "Performance Tuning Guide", `torch.nonzero`,
`torch.use_deterministic_algorithms`; aten/src/ATen/native/TensorAdvancedIndexing.cpp, where the
deterministic `scatter_add_` copies strides from the host; torch/amp/grad_scaler.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.rules.remedies.compute.optimizer import FUSED_OPTIMIZER
from tb_perfadvisor.rules.remedies.compute.precision import NO_LOSS_SCALING
from tb_perfadvisor.rules.remedies.launch.results import READ_ARRAYS_RARELY, READ_RARELY
from tb_perfadvisor.rules.remedies.launch.serving import OVERLAPPED_SCHEDULE
from tb_perfadvisor.rules.remedies.memory.copies import COPY_TO_PINNED, PINNED_MEMORY
from tb_perfadvisor.signals.host.wait_call_sites import WaitCallSite
from tb_perfadvisor.trace import CopyDirection

_ASYNC_DISPATCH = "https://docs.jax.dev/en/latest/async_dispatch.html"
_TUNING = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"


class SynchronizationCause(Struct, frozen=True):
    """A known cause of a wait."""

    label: str
    """What the program does, as the end of a sentence."""
    matches: Callable[[WaitCallSite], bool]
    remedies: tuple[Remedy, ...]
    """Variants of the remedy; a program is shown those that fit."""


def cause_of(site: WaitCallSite) -> SynchronizationCause | None:
    """The first cause that matches a call site; None if it is unknown."""
    return next((cause for cause in CAUSES if cause.matches(site)), None)


def remedies_for(sites: tuple[WaitCallSite, ...], most: int) -> tuple[Remedy, ...]:
    """Remedies for the causes of the call sites, in their order.

    Args:
        sites: The call sites, the costliest first.
        most: The most causes to give remedies for.
    """
    known = (cause_of(site) for site in sites)
    causes = list(dict.fromkeys(cause.label for cause in known if cause is not None))[:most]
    return tuple(
        remedy
        for label in causes
        for cause in CAUSES
        if cause.label == label
        for remedy in cause.remedies
    )


def _has(*operators: str) -> Callable[[WaitCallSite], bool]:
    return lambda site: not set(operators).isdisjoint(site.operators)


def _copies(direction: CopyDirection) -> Callable[[WaitCallSite], bool]:
    return lambda site: site.copies == direction and "aten::copy_" in site.operators


def _remedy(text: str, snippet: str, reference: str = _TUNING) -> tuple[Remedy, ...]:
    return (Remedy(text=text, snippet=snippet, framework="pytorch", reference=reference),)


def _jax_remedy(text: str, snippet: str, reference: str = _ASYNC_DISPATCH) -> tuple[Remedy, ...]:
    return (Remedy(text=text, snippet=snippet, framework="jax", reference=reference),)


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
        _remedy(
            "Index instead of using torch.gather: under "
            "torch.use_deterministic_algorithms(True), the backward of gather copies strides "
            "from the host and waits for them.",
            "# instead of: y = x.gather(1, keep[..., None].expand(-1, -1, x.shape[-1]))\n"
            "rows = torch.arange(x.shape[0], device=x.device)[:, None]\n"
            "y = x[rows, keep]",
            "https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html",
        ),
    ),
    SynchronizationCause(
        "GradScaler's check for infinities",
        lambda site: site.checks_gradients or "amp/grad_scaler.py(" in site.frame,
        (*NO_LOSS_SCALING, *FUSED_OPTIMIZER),
    ),
    SynchronizationCause(
        "printing tensors",
        lambda site: "torch/_tensor_str.py(" in site.frame,
        _remedy(
            "Don't print or format device tensors in the step.",
            "if step % 100 == 0:\n    print(f'{value.item():.4f}')",
        ),
    ),
    SynchronizationCause(
        "float(), int() or .item()",
        _reads_jax_array(r"__(float|int|index|complex)__|tolist|_item"),
        READ_ARRAYS_RARELY,
    ),
    SynchronizationCause(
        "arrays as conditions (if x:)",
        _reads_jax_array("__bool__"),
        _jax_remedy(
            "Decide on the device, or decide rarely: an array in a Python condition waits for its "
            "value.",
            "# instead of: if loss > limit: updates = clip(updates)\n"
            "updates = jax.lax.cond(loss > limit, clip, lambda updates: updates, updates)",
            "https://docs.jax.dev/en/latest/control-flow.html",
        ),
    ),
    SynchronizationCause(
        "printing arrays",
        _reads_jax_array("__(format|str|repr)__"),
        READ_ARRAYS_RARELY,
    ),
    SynchronizationCause("jax.device_get()", _reads_jax_array("device_get"), READ_ARRAYS_RARELY),
    SynchronizationCause(
        "reading results (float(), jax.device_get(), np.asarray())",
        lambda site: "np.asarray(jax.Array)" in site.calls,
        READ_ARRAYS_RARELY,
    ),
    SynchronizationCause(
        "block_until_ready()",
        lambda site: any("block_until_ready" in call for call in site.calls),
        _jax_remedy(
            "Remove block_until_ready from the loop: JAX waits by itself for what a program needs. "
            "To bound how far the host runs ahead, wait for an earlier step.",
            "state, loss = train_step(state, batch)\n"
            "jax.block_until_ready(previous_loss)  # of the step before\n"
            "previous_loss = loss",
        ),
    ),
    SynchronizationCause(
        "masked_select",
        _has("aten::masked_select"),
        _remedy(
            "Keep the shape: the result of masked_select has a size that the host must get from "
            "the device.",
            "# instead of: x.masked_select(mask).sum()\ntotal = torch.where(mask, x, 0.0).sum()",
            "https://docs.pytorch.org/docs/stable/generated/torch.where.html",
        ),
    ),
    SynchronizationCause(
        "x[mask]",
        lambda site: _indexes(site) and "aten::nonzero" in site.operators,
        _remedy(
            "Keep the shape instead of indexing with a boolean mask: the host must get the size "
            "of the result from the device.",
            "# instead of: x[mask] = 0.0\n"
            "x = x.masked_fill(mask, 0.0)\n"
            "# instead of: mean = values[mask].mean()\n"
            "mean = (values * mask).sum() / mask.sum()",
            "https://docs.pytorch.org/docs/stable/generated/torch.where.html",
        ),
    ),
    SynchronizationCause(
        "indices on the host",
        lambda site: _indexes(site) and site.copies == CopyDirection.HOST_TO_DEVICE,
        _remedy(
            "Keep indices on the device: an index that is a list or a host tensor is copied at "
            "each use, and the host waits for the copy.",
            "keep = torch.tensor([0, 2, 5], device=x.device)  # once, before the loop\n"
            "y = x[:, keep]",
        ),
    ),
    SynchronizationCause(
        "the backward of indexing (index_put_)",
        lambda site: bool(site.node) and _indexes(site),
        _remedy(
            "Select with torch.index_select and an index on the device: its backward adds rows "
            "without index_put_.",
            "# instead of: y = x[index]\ny = x.index_select(0, index)",
            "https://docs.pytorch.org/docs/stable/generated/torch.index_select.html",
        ),
    ),
    SynchronizationCause(
        "nonzero",
        _has("aten::nonzero"),
        _remedy(
            "Compute with the mask itself: the host must get the size of nonzero's result from "
            "the device. If you know the size, pass it.",
            "indices = torch.nonzero_static(mask, size=budget)",
            "https://docs.pytorch.org/docs/stable/generated/torch.nonzero.html",
        ),
    ),
    SynchronizationCause(
        "unique",
        _has("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"),
        _remedy(
            "Find distinct values on the host, before the data is copied to the device: on the "
            "device, the host must wait for their number.",
            "values, inverse = numpy.unique(ids, return_inverse=True)",
        ),
    ),
    SynchronizationCause(
        "repeat_interleave",
        _has("aten::repeat_interleave"),
        _remedy(
            "Pass the length of the result.",
            "y = x.repeat_interleave(repeats, output_size=total)",
            "https://docs.pytorch.org/docs/stable/generated/torch.repeat_interleave.html",
        ),
    ),
    SynchronizationCause(
        "tensors as conditions (if x:)",
        _has("aten::is_nonzero"),
        _remedy(
            "Decide on the device, or decide rarely: a tensor in a Python condition waits for "
            "its value.",
            "# instead of: if (x > limit).any(): x = clip(x)\n"
            "x = torch.where(x > limit, clip(x), x)",
        ),
    ),
    SynchronizationCause(
        ".item()",
        _has("aten::item", "aten::_local_scalar_dense"),
        (*READ_RARELY, *OVERLAPPED_SCHEDULE),
    ),
    SynchronizationCause(
        ".cpu()",
        _copies(CopyDirection.DEVICE_TO_HOST),
        (*COPY_TO_PINNED, *OVERLAPPED_SCHEDULE),
    ),
    SynchronizationCause(
        "host tensors (.to(device))",
        _copies(CopyDirection.HOST_TO_DEVICE),
        (
            *_remedy(
                "Create tensors on the device.",
                "scale = torch.full((), 0.5, device=x.device)  # not torch.tensor(0.5).to(device)",
            ),
            *PINNED_MEMORY,
        ),
    ),
    SynchronizationCause(
        "torch.cuda.synchronize()",
        lambda site: not site.operators and site.calls == ("cudaDeviceSynchronize",),
        _remedy(
            "Remove torch.cuda.synchronize(): measure time with events, and read them after the "
            "loop.",
            "start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))\n"
            "start.record()\n"
            "output = model(inputs)\n"
            "end.record()  # after the loop: start.elapsed_time(end)",
            "https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",
        ),
    ),
)
