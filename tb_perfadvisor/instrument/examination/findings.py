"""All that is looked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from msgspec.structs import replace

from tb_perfadvisor.instrument.examination.calls import (
    PRODUCTS,
    Call,
    Steps,
    all_calls,
    noted,
    total_ns,
)
from tb_perfadvisor.instrument.examination.clocks import fault_ns
from tb_perfadvisor.instrument.examination.gradients import dropped
from tb_perfadvisor.instrument.examination.independent import independent
from tb_perfadvisor.instrument.examination.needed import unread
from tb_perfadvisor.instrument.examination.repeated import repeated
from tb_perfadvisor.instrument.examination.watching import Watching
from tb_perfadvisor.instrument.examination.zeros import mostly_zero, padding
from tb_perfadvisor.machine.facts import Examined, Look, Observed

_WHOLE_CALL: Final = 2
"""Python and autograd, which call an operator, take about as long as the call itself."""


def examined(steps: Steps, watching: Watching, usual_faults: int = 0) -> Examined:
    """What was found in some steps. A look that fails does not end the others."""
    host_ns, device_ns = total_ns(steps), sum(call.device_ns for call in all_calls(steps))
    on_device = device_ns > _WHOLE_CALL * host_ns
    if on_device:
        steps = [[replace(call, ns=call.device_ns) for call in step] for step in steps]
    usual_ns = _usual_ns(steps)
    steps = [
        [replace(call, ns=usual_ns[_work(call)]) for call in _at_forward_lines(step)]
        for step in steps
    ]
    freed = watching.provenance.freed()
    looks: dict[Look, Callable[[], list[Observed]]] = {
        "repeated results": lambda: repeated(steps, watching.inputs, watching.models_called_at),
        "unread results": lambda: unread(steps, freed),
        "independent calls": lambda: independent(steps),
        "zeros": lambda: mostly_zero(steps),
        "padding": lambda: padding(steps, watching.models_called_at),
        "dropped gradients": lambda: dropped(steps),
        "page faults": lambda: [] if device_ns else _faulting(steps, usual_faults),
        "lines": lambda: noted("lines", steps, filter(lambda c: c.computes, all_calls(steps))),
    }
    forward = [call for call in all_calls(steps) if call.kind == "forward" and call.computes]
    observed: list[Observed] = []
    for look, find in looks.items():
        observed += watching.attempt(look, find, list[Observed]())
    return Examined(
        steps=len(steps),
        seconds=total_ns(steps) / 1e9,
        on_device=on_device,
        calls=round(sum(map(len, steps)) / max(len(steps), 1)),
        new_shapes=_new_shapes(steps),
        model_calls=len({call.model_call for call in forward if call.model_call})
        / max(len(steps), 1),
        in_models=sum(call.model_call > 0 for call in forward) / max(len(forward), 1),
        observed=tuple(observed),
        failed=tuple(watching.failed.values()),
    )


def _faulting(steps: Steps, usual_faults: int) -> list[Observed]:
    """Operators whose results need new pages in every step, also while nobody looks."""
    step = min(steps[1:], key=_faults, default=())
    price_ns = fault_ns() if usual_faults and _faults(step) else None
    if price_ns is None:
        return []
    price_ns *= min(usual_faults / _faults(step), 1.0)
    calls = [replace(call, ns=min(round(call.faults * price_ns), call.ns)) for call in step]
    return noted("page faults", [step], [call for call in calls if call.ns], amount=_faults)


def _faults(calls: Sequence[Call]) -> int:
    return sum(call.faults for call in calls)


def _new_shapes(steps: Steps) -> float:
    """The share of products in later steps whose shapes none had before."""
    seen: set[object] = set()
    products = new = 0
    for number, step in enumerate(steps):
        works = [_work(call) for call in step if call.kind == "forward" and call.name in PRODUCTS]
        if number:
            products += len(works)
            new += sum(work not in seen for work in works)
        seen.update(works)
    return new / max(products, 1)


def _at_forward_lines(calls: Sequence[Call]) -> list[Call]:
    """Backward operators at the lines of their forward operators, not of `backward()`."""
    forward = {call.sequence: call for call in calls if call.kind == "forward" and call.has_node}
    return [
        replace(call, place=of.place or call.place, model_call=of.model_call)
        if call.kind == "backward" and (of := forward.get(call.sequence)) is not None
        else call
        for call in calls
    ]


def _work(call: Call) -> object:
    return call.name, call.kind, tuple(each.shape for each in call.inputs)


def _usual_ns(steps: Steps) -> dict[object, int]:
    """The median time of each kind of operator: others may have the core in the middle of one."""
    times: dict[object, list[int]] = defaultdict(list)
    for call in all_calls(steps):
        times[_work(call)].append(call.ns)
    return {work: int(median(ns)) for work, ns in times.items()}
