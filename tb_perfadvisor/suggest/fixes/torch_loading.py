"""Arguments of PyTorch's DataLoader, and copies that do not wait."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from tb_perfadvisor.suggest.arguments import (
    argument,
    integer,
    is_name,
    positional,
    unpacks,
    with_argument,
)
from tb_perfadvisor.suggest.change import Change, Fix
from tb_perfadvisor.suggest.code import Code, Node, dotted_name, inside
from tb_perfadvisor.suggest.constants import literal_behind

_LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_WORKERS_PLACE = 5
"""`num_workers` is the sixth parameter of DataLoader."""
_USUAL_WORKERS = 4
"""As in the remedies: two to four for each device."""
_REPEATS = re.compile(r"IterableDataset|streaming=True|to_iterable_dataset")


def _workers(code: Code, remedy: str) -> Iterator[Change]:
    """More worker processes, which persist."""
    for call in code.calls(*_LOADER):
        now = argument(call, "num_workers")
        if _REPEATS.search(code.text):
            yield Change(call, unsure="each worker would repeat the data of an IterableDataset")
            continue
        if len(positional(call)) > _WORKERS_PLACE or (now is None and unpacks(call)):
            yield Change(call, unsure="other arguments may set num_workers")
            continue
        literal = now if integer(now) is not None else literal_behind(code, now)
        count = 0 if now is None else integer(literal)
        if count is None:
            yield Change(
                call, unsure=f"num_workers is `{code.source(now)}`, which is set elsewhere"
            )
            continue
        workers = max(_USUAL_WORKERS, 2 * count)
        if literal is not now:
            number = cst.Integer(str(workers))
            yield Change(call, f"num_workers={workers}", ((literal, number),))
            continue
        changed, what = with_argument(call, "num_workers", str(workers)), f"num_workers={workers}"
        if argument(call, "persistent_workers") is None and not unpacks(call):
            changed = with_argument(changed, "persistent_workers", "True")
            what += ", persistent_workers=True"
        yield Change(call, what, ((call, changed),))


def _pinned(code: Code, remedy: str) -> Iterator[Change]:
    """Batches in pinned memory, and copies of them that do not wait."""
    for call in code.calls(*_LOADER):
        copies = list(_copies_of_batches(code, code.target(call)))
        if not copies:
            continue
        is_pinned = is_name(argument(call, "pin_memory"), "True")
        if unpacks(call) and not is_pinned:
            yield Change(call, unsure="other arguments may set pin_memory")
            continue
        changes = [(copy, with_argument(copy, "non_blocking", "True")) for copy in copies]
        if not is_pinned:
            changes.append((call, with_argument(call, "pin_memory", "True")))
        yield Change(call, "pin_memory=True, non_blocking=True", tuple(changes))


def _copies_of_batches(code: Code, loader: str) -> Iterator[Node]:
    """Copies to a device, in loops over a loader, of what the loader yields."""
    for loop in code.nodes:
        if not isinstance(loop, cst.For) or not loader:
            continue
        if loader not in {dotted_name(node) for node in inside(loop.iter)}:
            continue
        batch = {node.value for node in inside(loop.target) if isinstance(node, cst.Name)}
        for node in inside(loop.body):
            if (
                code.is_call(node, "*.to", "*.cuda")
                and dotted_name(node.func.value) in batch
                and argument(node, "non_blocking") is None
                and len(node.args) == (1 if node.func.attr.value == "to" else 0)
            ):
                yield node


FIXES = (
    Fix(r"\bnum_workers=", ("DataLoader",), _workers),
    Fix(r"pin_memory=True|non_blocking=True", ("DataLoader",), _pinned),
)
