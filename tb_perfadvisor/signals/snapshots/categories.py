"""What a snapshot's memory is for: parameters, gradients, activations and so on.

The stack of an allocation says which part of a step made it, annotations say where the optimizer
works, and the life of the allocation says what for, as in profiles.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.operators import (
    NEVER,
    Lives,
    MemoryCategory,
    Phase,
    categorize,
    gradient_bytes,
    held_by_category,
    name_earlier,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Course, memory_course
from tb_perfadvisor.signals.snapshots.held import optimizer_state
from tb_perfadvisor.signals.snapshots.sites import Site, Sites, allocation_sites
from tb_perfadvisor.trace.memory_snapshot import Action, Frame
from tb_perfadvisor.trace.tables import Int8, Int32, Int64

_OPTIMIZER_STEP = "Optimizer.step#"
_FETCHES = "torch/utils/data/"
_MOVES = regex(
    r"^(?:send_to_device|move_data_to_device|transfer_batch_to_device|_prepare_inputs?)$"
)
"""Functions of Accelerate, Lightning and Transformers that move a batch to the device."""
_COPIES_TO_DEVICE = ("to_device", "to_dtype_layout")
"""What `Tensor.to` and `Tensor.cuda` call, by PyTorch's python_variable_methods.cpp."""
_MODULES = "torch/nn/modules/"
_PASSES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


class SnapshotCategories(Struct, frozen=True):
    """What each allocation of a snapshot's device is for."""

    lives: Lives
    of_each: Int8
    """The code of the `MemoryCategory` of each allocation."""
    trained_bytes: int
    """Of what is from before the history, the parameters that have gradients."""
    state_bytes: int
    """Of what is from before the history, optimizer state by the sizes of all that is there."""
    phases: tuple[tuple[int, Phase], ...]
    """The state before the first event of each part of a step, in order."""

    def at(self, states: Int64) -> dict[MemoryCategory, Int64]:
        """Bytes of each category in some states, which add up to all; shape (states,)."""
        held = held_by_category(self.lives, self.of_each, states)
        earlier = held.pop(MemoryCategory.EARLIER)
        return name_earlier(held, earlier, self.trained_bytes, self.state_bytes)


@memoized
def snapshot_categories(signals: Signals) -> SnapshotCategories | None:
    """What the memory of the snapshot's device is for; None unless a backward pass is seen."""
    course, sites = memory_course(signals), allocation_sites(signals)
    if course is None or sites is None:
        return None
    phase_of_stack, is_weight_stack = _phases_of_stacks(course, sites)
    steps = _annotated_steps(course, phase_of_stack)
    begins = _begins(course, np.where(is_weight_stack, Phase.OTHER.code, phase_of_stack), steps)
    backward = _states_of(begins, Phase.BACKWARD)
    if not len(backward):
        return None
    optimizer = _states_of(begins, Phase.OPTIMIZER)
    allocations = course.allocations
    until = np.where(allocations.until >= len(course), NEVER, allocations.until)
    lives = Lives(allocations.bytes, allocations.since, until)
    is_earlier = allocations.since == 0
    phase = phase_of_stack[allocations.stack]
    phase[_are_inside(allocations.since - 1, steps) & (phase == Phase.FORWARD.code)] = (
        Phase.OPTIMIZER.code
    )
    # What was there before the history and has no stack is unknown, not autograd's.
    phase[is_earlier & (allocations.stack < 0)] = Phase.BEFORE.code
    found = categorize(lives, phase, backward, optimizer)
    _name_by_earlier_steps(found, lives, allocations.stack, backward)
    is_kept = (until == NEVER) | (found == MemoryCategory.UNKNOWN.code)
    is_weight = is_weight_stack[allocations.stack] & is_kept
    found[is_weight] = MemoryCategory.PARAMETERS.code
    found[is_earlier & (found == MemoryCategory.UNKNOWN.code)] = MemoryCategory.EARLIER.code
    state = optimizer_state(signals)
    state_bytes = state.bytes if state is not None and state.is_inferred else 0
    # The state that follows from sizes is two averages of each gradient.
    trained = gradient_bytes(lives, found, optimizer) or state_bytes // 2
    loaded = int(lives.bytes[is_weight].sum())
    return SnapshotCategories(lives, found, max(trained - loaded, 0), state_bytes, begins)


def _phases_of_stacks(course: Course, sites: Sites) -> tuple[Int8, NDArray[np.bool_]]:
    """The code of each stack's `Phase`, and whether it makes weights.

    The last one of each is for allocations without a stack; shape (stacks + 1,).
    """
    stacks = course.snapshot.stacks
    phases, makes_weights = [], []
    for number, site in enumerate(sites.of_stacks):
        frames = stacks.of(number) if number < len(stacks) else ()
        phase = _phase(site, frames)
        phases.append(phase.code)
        is_forward = phase is Phase.FORWARD
        makes_weights.append(is_forward and (site.makes_weights or _is_built(frames)))
    return np.array(phases, dtype=np.int8), np.array(makes_weights, dtype=bool)


def _phase(site: Site, frames: tuple[Frame, ...]) -> Phase:
    if site.is_backward:
        return Phase.BACKWARD
    if site.is_optimizer:
        return Phase.OPTIMIZER
    if not frames:
        return Phase.OTHER
    moves = site.operator in _COPIES_TO_DEVICE and not site.makes_weights
    is_input = moves and not _calls_module(frames)
    is_input |= any(_FETCHES in _file(frame) or _MOVES.match(frame.function) for frame in frames)
    return Phase.INPUT if is_input else Phase.FORWARD


def _is_built(frames: tuple[Frame, ...]) -> bool:
    """Whether a module of PyTorch is made, and not by a call of another one."""
    makes = any(_MODULES in _file(frame) and frame.function == "__init__" for frame in frames)
    return makes and not _calls_module(frames)


def _calls_module(frames: tuple[Frame, ...]) -> bool:
    return any(
        "call" in frame.function and _file(frame).endswith(f"{_MODULES}module.py")
        for frame in frames
    )


def _file(frame: Frame) -> str:
    return frame.file.replace("\\", "/")


def _annotated_steps(course: Course, phase_of_stack: Int8) -> Int64:
    """The states before and after each annotated step of an optimizer; shape (steps, 2).

    Without those that run the forward and the backward pass in a closure.
    """
    table = course.snapshot.annotations
    is_step = np.array([name.startswith(_OPTIMIZER_STEP) for name in table.names] or [False])
    is_closed = (table.end_ns >= 0) & np.isin(table.device, (course.device, -1))
    rows = np.flatnonzero(is_closed & is_step[table.name])
    if not len(rows) or not course.has_times:
        return np.empty((0, 2), dtype=np.int64)
    steps = course.states_at(np.stack([table.start_ns[rows], table.end_ns[rows]], axis=1))
    places = course.places(Action.ALLOCATE)
    stack = course.snapshot.events.stack[course.rows[places]]
    first, last = np.searchsorted(places[phase_of_stack[stack] == Phase.BACKWARD.code], steps).T
    kept: Int64 = steps[first == last]
    return kept


def _are_inside(events: Int64, steps: Int64) -> NDArray[np.bool_]:
    """Which events lie between the states of an annotated step; shape (events,)."""
    step = np.searchsorted(steps[:, 0], events, "right") - 1
    return (step >= 0) & (events < np.append(steps[:, 1], 0)[step])


def _begins(course: Course, phase_of_stack: Int8, steps: Int64) -> tuple[tuple[int, Phase], ...]:
    """The state before the first event of each forward and backward pass and optimizer step.

    Frees are of the part that works meanwhile, but for gradients that the optimizer's code frees.
    """
    events = course.snapshot.events
    action, stack = events.action[course.rows], events.stack[course.rows]
    phase = phase_of_stack[stack]
    is_telling = np.isin(phase, [known.code for known in _PASSES]) & (
        (action == Action.ALLOCATE)
        | ((action == Action.FREE) & (stack >= 0) & (phase == Phase.OPTIMIZER.code))
    )
    places = np.flatnonzero(is_telling)
    phase = phase[places]
    phase[_are_inside(places, steps) & (phase == Phase.FORWARD.code)] = Phase.OPTIMIZER.code
    places = np.concatenate([steps[:, 0], places])
    phase = np.concatenate([np.full(len(steps), Phase.OPTIMIZER.code, np.int8), phase])
    order = np.argsort(places, kind="stable")
    places, phase = places[order], phase[order]
    is_first = np.diff(phase, prepend=-1) != 0
    phases = {known.code: known for known in _PASSES}
    return tuple(
        (place, phases[code])
        for place, code in zip(places[is_first].tolist(), phase[is_first].tolist(), strict=True)
    )


def _states_of(begins: tuple[tuple[int, Phase], ...], phase: Phase) -> Int64:
    return np.array([state for state, known in begins if known is phase], dtype=np.int64)


def _name_by_earlier_steps(found: Int8, lives: Lives, stack: Int32, backward: Int64) -> None:
    """Name what the last forward pass holds by what the same stack held in earlier ones.

    Its backward pass is not in the history: perhaps because memory ran out.
    """
    is_open = (lives.until == NEVER) & (lives.since > backward[-1]) & (stack >= 0)
    settled = np.flatnonzero(~is_open & (stack >= 0))
    least = np.full(stack.max(initial=-1) + 1, len(MemoryCategory), dtype=np.int8)
    most = np.full(len(least), -1, dtype=np.int8)
    np.minimum.at(least, stack[settled], found[settled])
    np.maximum.at(most, stack[settled], found[settled])
    named = np.flatnonzero(is_open & (found == MemoryCategory.UNKNOWN.code))
    named = named[least[stack[named]] == most[stack[named]]]
    found[named] = most[stack[named]]
