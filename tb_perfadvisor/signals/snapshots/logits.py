"""Logits over a vocabulary, and what the cross-entropy makes of them.

The loss of a language model has a value for each token and each word. Logits, their logarithmic
softmax and the gradients of both are as large as that, and exist at once. A fused loss computes
them in parts.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Course
from tb_perfadvisor.signals.snapshots.lower_peak import freed_at_peak, held_bytes
from tb_perfadvisor.signals.snapshots.memory_course import memory_course
from tb_perfadvisor.signals.snapshots.sites import Site, Sites, allocation_sites
from tb_perfadvisor.signals.snapshots.source_lines import line_of

_LOSS = re.compile(r"^_?(?:cross_entropy|log_softmax|nll_loss)(?:_\w+)?$", re.IGNORECASE)
_LOSS_NODE = re.compile(r"^(?:NllLoss|LogSoftmax|CrossEntropy)\w*Backward")
_PRODUCT = re.compile(r"^(?:linear|einsum|matmul|mm|addmm|bmm)$")
_SHIFTED_SHARE = 0.01
"""Labels are shifted by a token, so that some copies have one token less in each sequence."""
_PARTS = 8
"""In how many parts a fused loss is computed. More parts cost little, as long as a part has
thousands of tokens."""


class StoredLogits(Struct, frozen=True):
    """Tensors of a value for each token and word, on one device."""

    place: str | None
    """The line that computes the loss."""
    at_peak: NDArray[np.bool_]
    """Which allocations they are, of those alive at the peak; shape (allocations,)."""
    copies: int
    """How many of them are alive at the peak."""
    held_bytes: int
    freed_bytes: int
    """By how much the peak falls if the loss is computed in parts."""


@memoized
def stored_logits(signals: Signals) -> StoredLogits | None:
    """Logits and copies of them that are alive at the peak; None without any."""
    course, sites = memory_course(signals), allocation_sites(signals)
    if course is None or sites is None:
        return None
    allocations = course.allocations
    of_loss = np.array([_is_loss(site) for site in sites.of_stacks], dtype=bool)
    in_loss = sites.are(allocations, of_loss) & (allocations.stack >= 0)
    if not in_loss.any():
        return None
    size = int(allocations.bytes[in_loss].max())
    is_as_large = np.abs(allocations.bytes - size) <= _SHIFTED_SHARE * size
    # A copy in 16 bits takes half as much as one in 32.
    is_large = is_as_large | (np.abs(allocations.bytes - size / 2) <= _SHIFTED_SHARE * size)
    chosen = (in_loss | _products(course, sites, in_loss)) & is_large
    # Without names of nodes, the gradients of these tensors are known by their size.
    unnamed = np.array([site.is_backward and not site.node for site in sites.of_stacks], dtype=bool)
    chosen |= sites.are(allocations, unnamed) & is_as_large
    is_alive = chosen & (allocations.since <= course.peak) & (allocations.until > course.peak)
    held = int(allocations.bytes[is_alive].sum())
    if not held:
        return None
    removed = held_bytes(course, chosen)
    lines = [
        line_of(course.snapshot.stacks.of(int(stack)))
        for stack in allocations.stack[in_loss & is_large]
        if not sites.of(int(stack)).is_backward
    ]
    return StoredLogits(
        place=lines[0] if lines else None,
        at_peak=is_alive,
        copies=int(is_alive.sum()),
        held_bytes=held,
        freed_bytes=freed_at_peak(course, removed - removed // _PARTS),
    )


def _is_loss(site: Site) -> bool:
    if _LOSS_NODE.match(site.node):
        return True
    return not site.is_backward and (
        _LOSS.match(site.operator) is not None
        or any(_LOSS.match(frame.function) for frame in site.frames)
    )


def _products(course: Course, sites: Sites, in_loss: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The logits themselves: the latest product before each loss begins."""
    allocations = course.allocations
    is_product = np.array(
        [bool(_PRODUCT.match(site.operator)) and not site.is_backward for site in sites.of_stacks],
        dtype=bool,
    )
    products = np.flatnonzero(sites.are(allocations, is_product) & ~in_loss)
    found = np.zeros(len(allocations), dtype=bool)
    ordered = products[np.argsort(allocations.since[products], kind="stable")]
    place = np.searchsorted(allocations.since[ordered], allocations.since[in_loss]) - 1
    found[ordered[place[place >= 0]]] = True
    return found
