"""Optimizers, gradients and moving averages of PyTorch programs."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.workload.workload import Part
from tb_perfadvisor.suggest.code import (
    Code,
    Edit,
    Fix,
    Node,
    Values,
    argument,
    dotted_name,
    is_name,
    unpacks,
    with_argument,
    without_argument,
)

OPTIMIZERS = tuple(f"torch.optim.{name}" for name in ("Adam", "AdamW", "SGD", "Adagrad"))
_FUSED = OPTIMIZERS[:3]
"""Those with a fused implementation on CUDA and on the CPU (PyTorch 2.4); Adagrad has none on
CUDA."""
_DDP = (
    "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel",
)
_READS_GRADIENTS = regex(r"\.grad\b")
_LOW_PRECISION = regex(r"autocast|bfloat16|float16|\.half\(|fp16|bf16")
_NAMES_OF_DDP = ("DistributedDataParallel", "DDP(")
_USUAL_BUCKET_MB = 25
"""DistributedDataParallel's default."""


def _fused(code: Code, values: Values) -> Iterator[Edit]:
    """The fused form, in all optimizers of the class that a finding on the CPU names."""
    named = f"torch.optim.{values['optimizer']}" if "optimizer" in values else ""
    if named not in OPTIMIZERS:
        yield from _each_fused(code, _FUSED)
        return
    edits = list(_each_fused(code, (named,)))
    changes = tuple(change for edit in edits for change in edit.replacements)
    if len(edits) > 1 and all(edit.replacements for edit in edits):
        yield edits[0]._replace(what=f"fused=True in {len(edits)} places", replacements=changes)
    else:
        yield from edits


def _each_fused(code: Code, names: tuple[str, ...]) -> Iterator[Edit]:
    for call in code.calls(*names):
        given = argument(call, "fused")
        if is_name(given, "True"):
            yield Edit(call, present="fused=True")
            continue
        if unpacks(call) or not (
            given is None or is_name(given, "False") or is_name(given, "None")
        ):
            yield Edit(call, unsure="other arguments may choose the implementation")
            continue
        if argument(call, "differentiable") is not None:
            yield Edit(call, unsure="a fused optimizer cannot be differentiable")
            continue
        changed = with_argument(without_argument(call, "foreach"), "fused", "True")
        yield Edit(call, "fused=True", ((call, changed),))


def _averages(code: Code, values: Values) -> Iterator[Edit]:
    """Moving averages of all parameters with one operator."""
    for call in code.calls("*.AveragedModel", "torch.optim.swa_utils.AveragedModel"):
        made = argument(call, "avg_fn")
        if not isinstance(made, cst.Call) or not isinstance(made.func, cst.Attribute):
            continue
        name = made.func.attr.value
        if name not in ("get_ema_avg_fn", "get_swa_avg_fn"):
            continue
        function = cst.Name(name.replace("_avg_fn", "_multi_avg_fn"))
        for_lists = made.with_changes(func=made.func.with_changes(attr=function))
        args = [
            arg.with_changes(keyword=cst.Name("multi_avg_fn"), value=for_lists)
            if arg.value is made
            else arg
            for arg in call.args
        ]
        yield Edit(call, "multi_avg_fn", ((call, call.with_changes(args=args)),))


def _zero_grad(code: Code, values: Values) -> Iterator[Edit]:
    for call in code.calls("*.zero_grad"):
        if is_name(argument(call, "set_to_none"), "False") or not call.args:
            if _READS_GRADIENTS.search(code.text):
                yield Edit(call, unsure="the file reads gradients, which would be None")
                continue
            changed = with_argument(call, "set_to_none", "True")
            yield Edit(call, "set_to_none=True", ((call, changed),))


def _larger_buckets(code: Code, values: Values) -> Iterator[Edit]:
    return _buckets(code, float(values["bucket_mb"]), is_larger=True)


def _smaller_buckets(code: Code, values: Values) -> Iterator[Edit]:
    return _buckets(code, float(values["bucket_mb"]), is_larger=False)


def _buckets(code: Code, wanted_mb: float, *, is_larger: bool) -> Iterator[Edit]:
    """Buckets of the size that the finding proposes, never in the other direction."""
    for call in code.calls(*_DDP):
        given = argument(call, "bucket_cap_mb")
        if given is None and not unpacks(call):
            now_mb: float = _USUAL_BUCKET_MB
        elif isinstance(given, cst.Integer | cst.Float):
            now_mb = float(given.value)
        else:
            yield Edit(call, unsure="bucket_cap_mb is no literal")
            continue
        if (now_mb >= wanted_mb) if is_larger else (now_mb <= wanted_mb):
            yield Edit(call, unsure=f"bucket_cap_mb is {now_mb:g} already")
            continue
        changed = with_argument(call, "bucket_cap_mb", f"{wanted_mb:g}")
        yield Edit(call, f"bucket_cap_mb={wanted_mb:g}", ((call, changed),))


def _logged_item(code: Code, values: Values) -> Iterator[Edit]:
    """`total += loss.item()` where the total is only formatted later."""
    for call in code.calls("*.item"):
        add = code.around(call, cst.AugAssign)
        total = dotted_name(add.target) if add is not None else ""
        loss = dotted_name(call.func.value)
        if not total or not isinstance(add.operator, cst.AddAssign) or add.value is not call:
            yield Edit(call, unsure="its value may be used at once")
        elif not _is_only_shown(code, total, add):
            yield Edit(call, unsure=f"`{total}` may be used as a number")
        elif not loss or not any(
            dotted_name(back.func.value) == loss for back in code.calls("*.backward")
        ):
            yield Edit(call, unsure="it may not be a loss: the file does not call its backward")
        else:
            detached = call.with_changes(func=call.func.with_changes(attr=cst.Name("detach")))
            what = "detach() in place of item()"
            if _LOW_PRECISION.search(code.text):  # a sum of thousands needs more digits
                detached = cst.Call(cst.Attribute(detached, cst.Name("float")))
                what = "detach().float() in place of item()"
            yield Edit(call, what, ((call, detached),))


def _is_only_shown(code: Code, name: str, add: Node) -> bool:
    """Whether a name is otherwise only reset, and formatted as a number."""
    for node in code.nodes:
        if not isinstance(node, cst.Name | cst.Attribute) or dotted_name(node) != name:
            continue
        if isinstance(code.parents.get(id(node)), cst.AssignTarget):
            continue
        around = code.around(node, cst.FormattedStringExpression, cst.AugAssign)
        is_formatted = isinstance(around, cst.FormattedStringExpression) and around.format_spec
        if around is not add and not is_formatted:
            return False
    return True


FIXES = (
    Fix(
        "fused-optimizer",
        ("optim",),
        _fused,
        "Differentiable optimizers, and those whose arguments are unpacked.",
        Part.FUSED_OPTIMIZER,
    ),
    Fix("list-averages", ("AveragedModel",), _averages, "Averages by a function of your own."),
    Fix("set-to-none", ("zero_grad",), _zero_grad, "Files that read gradients."),
    Fix(
        "larger-buckets",
        _NAMES_OF_DDP,
        _larger_buckets,
        "Buckets that are as large already, or whose size is no literal.",
    ),
    Fix(
        "smaller-buckets",
        _NAMES_OF_DDP,
        _smaller_buckets,
        "Buckets that are as small already, or whose size is no literal.",
    ),
    Fix(
        "detach-losses",
        (".item()",),
        _logged_item,
        "Values that may be used as numbers, and those that are no losses.",
    ),
)
