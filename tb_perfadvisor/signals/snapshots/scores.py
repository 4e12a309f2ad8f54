"""Large matrices that a program writes to memory: attention scores, logits of a vocabulary.

Softmax between two batched products is attention. Written out, it makes several tensors of the size
of the scores, and training keeps some of them for the backward pass. Fused attention makes none.

The loss of a language model has a value for each token and each word. Logits, their logarithmic
softmax and the gradients of both are as large as that, and exist at once. A fused loss computes
them in parts.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Course, freed_at_peak, held_bytes, memory_course
from tb_perfadvisor.signals.snapshots.held import Held
from tb_perfadvisor.signals.snapshots.sites import Site, Sites, allocation_sites, line_of, shown
from tb_perfadvisor.trace.memory_snapshot import Frame
from tb_perfadvisor.trace.tables import Int64

_SOFTMAX = regex(r"^_?(?:masked_)?(?:safe_)?softmax(?:_\w+)?$")
_PRODUCT = regex(r"^(?:einsum|bmm|baddbmm|matmul|__matmul__)$")
_OF_ATTENTION = regex(r"atte?n", re.IGNORECASE)
_SAME_FILE_PARTS = ("torch/", "einops/")
_MULTIPLES = (0.5, 1.0, 2.0)
"""A copy in 16 bits takes half as much as one in 32."""
_ROUNDING = 0.001


@memoized
def stored_attention(signals: Signals) -> Held | None:
    """Attention matrices that are alive at the peak; None without any."""
    course, sites = memory_course(signals), allocation_sites(signals)
    if course is None or sites is None:
        return None
    chosen = np.zeros(len(course.allocations), dtype=bool)
    by_place: dict[str, int] = {}
    allocations = course.allocations
    is_alive = (allocations.since <= course.peak) & (allocations.until > course.peak)
    for scope, members in _scopes(sites).items():
        matrices = _matrices(course, sites, scope, members)
        if matrices is not None:
            chosen |= matrices
            place = shown(scope)
            held = int(allocations.bytes[matrices & is_alive].sum())
            by_place[place] = by_place.get(place, 0) + held
    held = int(allocations.bytes[chosen & is_alive].sum())
    if not held:
        return None
    freed = freed_at_peak(course, held_bytes(course, chosen))
    place = max(by_place, key=lambda place: by_place[place])
    return Held(place, int((chosen & is_alive).sum()), held, chosen & is_alive, freed)


def _scopes(sites: Sites) -> dict[Frame, list[int]]:
    """The functions that call softmax, and the stacks that pass through each.

    A function is named by one frame in it. Its frames differ in their lines.
    """
    functions: dict[tuple[str, str], Frame] = {}
    for site in sites.of_stacks:
        frame = _caller_of_softmax(site)
        if frame is not None:
            functions.setdefault((frame.file, frame.function), frame)
    members: dict[Frame, list[int]] = defaultdict(list)
    for stack, site in enumerate(sites.of_stacks):
        for key in {(frame.file, frame.function) for frame in site.frames} & functions.keys():
            members[functions[key]].append(stack)
    return members


def _caller_of_softmax(site: Site) -> Frame | None:
    """The function that called softmax on this stack: PyTorch's, or one that is named so."""
    depth = -1
    for place, frame in enumerate(site.frames):
        if _SOFTMAX.match(frame.function):
            depth = place
    if depth < 0 and _SOFTMAX.match(site.operator) and not site.is_backward:
        depth = _last_of_torch(site)
    return site.frames[depth + 1] if 0 <= depth + 1 < len(site.frames) and _has(site) else None


def _has(site: Site) -> bool:
    return bool(_SOFTMAX.match(site.operator)) or any(
        _SOFTMAX.match(frame.function) for frame in site.frames
    )


def _last_of_torch(site: Site) -> int:
    """The last of the frames at the inner end that are PyTorch's own; -1 without any."""
    for place, frame in enumerate(site.frames):
        if not any(part in frame.file.replace("\\", "/") for part in _SAME_FILE_PARTS):
            return place - 1
    return len(site.frames) - 1


def _matrices(
    course: Course, sites: Sites, scope: Frame, members: list[int]
) -> NDArray[np.bool_] | None:
    """The matrices that one function makes; None if its softmax is not that of attention."""
    allocations = course.allocations
    stacks = {stack: sites.of(stack) for stack in members}
    own = {stack for stack, site in stacks.items() if _is_direct(site, scope)}
    softmax = {stack for stack in own if _has(stacks[stack])}
    others = own - softmax
    products = {stack for stack in others if _PRODUCT.match(stacks[stack].operator)}
    in_softmax = np.isin(allocations.stack, list(softmax))
    if not in_softmax.any():
        return None
    size = int(allocations.bytes[in_softmax].max())
    began = int(allocations.since[in_softmax].min())
    first = {stack: _first_of(course, stack) for stack in products or others}
    # One product makes the scores, and after softmax another one makes the output.
    scores = [stack for stack, since in first.items() if 0 <= since < began]
    outputs = [
        stack
        for stack, since in first.items()
        if since > began and not stacks[stack].is_autocast_copy
    ]
    are_scores = _are_multiples(allocations.bytes[np.isin(allocations.stack, scores)], size)
    if not are_scores.any() or not outputs:
        return None
    if not products:
        # Without names of operators, the program's own names tell.
        named = (scope, *(frame for site in stacks.values() for frame in _within(site, scope)))
        if not any(_OF_ATTENTION.search(frame.function) for frame in named):
            return None
    found: NDArray[np.bool_] = np.isin(allocations.stack, list(own.difference(outputs)))
    return found & _are_multiples(allocations.bytes, size)


def _first_of(course: Course, stack: int) -> int:
    """The first state with an allocation of a stack; -1 without any."""
    since = course.allocations.since[course.allocations.stack == stack]
    return int(since.min()) if len(since) else -1


def _are_multiples(sizes: Int64, size: int) -> NDArray[np.bool_]:
    found = np.zeros(len(sizes), dtype=bool)
    for multiple in _MULTIPLES:
        found |= np.abs(sizes - multiple * size) <= _ROUNDING * size
    return found


def _within(site: Site, scope: Frame) -> tuple[Frame, ...]:
    """The frames of a stack from the innermost up to a function."""
    for place, frame in enumerate(site.frames):
        if (frame.file, frame.function) == (scope.file, scope.function):
            return site.frames[: place + 1]
    return site.frames


def _is_direct(site: Site, scope: Frame) -> bool:
    """Whether a function makes the tensor itself, or with PyTorch's functions and softmax.

    Projections are made by modules that it calls.
    """
    if site.is_backward or not site.frames:
        return False
    inner = _within(site, scope)[:-1]
    return (
        all(
            _SOFTMAX.match(frame.function)
            or (
                any(part in frame.file.replace("\\", "/") for part in _SAME_FILE_PARTS)
                and frame.function not in ("forward", "linear")
            )
            for frame in inner
        )
        and site.operator != "linear"
    )


_LOSS = regex(r"^_?(?:cross_entropy|log_softmax|nll_loss)(?:_\w+)?$", re.IGNORECASE)
_LOSS_NODE = regex(r"^(?:NllLoss|LogSoftmax|CrossEntropy)\w*Backward")
_LOGITS_PRODUCT = regex(r"^(?:linear|einsum|matmul|mm|addmm|bmm)$")
_SHIFTED_SHARE = 0.01
"""Labels are shifted by a token, so that some copies have one token less in each sequence."""
_PARTS = 8
"""In how many parts a fused loss is computed. More parts cost little, as long as a part has
thousands of tokens."""


@memoized
def stored_logits(signals: Signals) -> Held | None:
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
    freed = freed_at_peak(course, removed - removed // _PARTS)
    place = lines[0] if lines else None
    return Held(place or "", int(is_alive.sum()), held, is_alive, freed)


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
        [
            bool(_LOGITS_PRODUCT.match(site.operator)) and not site.is_backward
            for site in sites.of_stacks
        ],
        dtype=bool,
    )
    products = np.flatnonzero(sites.are(allocations, is_product) & ~in_loss)
    found = np.zeros(len(allocations), dtype=bool)
    ordered = products[np.argsort(allocations.since[products], kind="stable")]
    place = np.searchsorted(allocations.since[ordered], allocations.since[in_loss]) - 1
    found[ordered[place[place >= 0]]] = True
    return found
