"""Arguments of PyTorch's DataLoader, and copies that do not wait."""

from __future__ import annotations

import re
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
    inside,
    integer,
    is_name,
    is_only_for,
    literal_behind,
    overrides,
    positional,
    unpacks,
    with_argument,
    with_arguments,
)

_LOADER = ("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
_WORKERS_PLACE = 5
"""`num_workers` is the sixth parameter of DataLoader."""
_PIN_PLACE = 7
"""The position of `pin_memory` among the arguments of a DataLoader."""
_USES_OF_WORKERS = frozenset({"num_workers", "persistent_workers", "prefetch_factor"})
_ONLY_OF_WORKERS = regex(r"persistent_workers|prefetch_factor|multiprocessing_context")
_REPEATS = regex(
    r"IterableDataset|streaming=True|to_iterable_dataset|webdataset|WebDataset|IterDataPipe"
)
_RANDOM = regex(r"Random[A-Z]|\brandom\.|[Aa]ugment|ColorJitter|TrivialAugment|np\.random")
"""What changes samples at random, in transforms of torchvision and in code."""
_ON_DEVICE = regex(r"\.cuda\(|\.to\(|device=")
_CHANGES_DATA = regex(r"\b(\w*data\w*|\w*set|ds)\.set_epoch\(", re.IGNORECASE)
_DEVICE = regex(r"dev|cuda|gpu|rank", re.IGNORECASE)
_SPAWNED = (
    "Where Python spawns processes (Windows, macOS, Python 3.14), the loop must be called below "
    '`if __name__ == "__main__":`.'
)


def _workers(code: Code, values: Values) -> Iterator[Edit]:
    """More worker processes, which persist."""
    for call in code.calls(*_LOADER):
        now = argument(call, "num_workers")
        why = _why_no_workers(code, call)
        if why:
            yield Edit(call, unsure=why)
            continue
        literal = now if integer(now) is not None else literal_behind(code, now)
        count = integer(literal)
        if now is not None and count is None:
            yield Edit(call, unsure=f"num_workers is `{code.source(now)}`, which is set elsewhere")
            continue
        present = f"num_workers={count}" if count else ""
        workers, note = str(_wanted_workers(values, count or 0)), ""
        if count:
            note = f"The profile was recorded with num_workers={count}; if not, record it again."
        elif "__main__" not in code.text:
            note = _SPAWNED
        wanted = {"num_workers": workers}
        if literal is not now:
            if is_only_for(code, now, _USES_OF_WORKERS):
                changes: tuple[tuple[Node, Node], ...] = ((literal, cst.Integer(workers)),)
            else:  # Another loader, or other code, would change with the value.
                changes = ((call, with_arguments(call, wanted)),)
            yield Edit(call, f"num_workers={workers}", changes, note=note, present=present)
            continue
        # Workers that persist keep the dataset as it was when they started.
        if (
            argument(call, "persistent_workers") is None
            and not (unpacks(call) and now is not None)
            and not _CHANGES_DATA.search(code.text)
        ):
            wanted["persistent_workers"] = "True"
        what = ", ".join(f"{name}={value}" for name, value in wanted.items())
        changes = ((call, with_arguments(call, wanted)),)
        yield Edit(call, what, changes, note=note, present=present)


def _no_workers(code: Code, values: Values) -> Iterator[Edit]:
    """No worker processes, and none of the arguments that only they take."""
    for call in code.calls(*_LOADER):
        now = argument(call, "num_workers")
        literal = now if integer(now) is not None else literal_behind(code, now)
        if now is not None and integer(literal) is None:
            yield Edit(call, unsure="num_workers is not a number in this call")
        elif not overrides(call):
            yield Edit(call, unsure="other arguments may set num_workers")
        elif now is None and unpacks(call) and _ONLY_OF_WORKERS.search(code.text):
            yield Edit(call, unsure="its unpacked arguments may need worker processes")
        elif integer(literal) != 0 and (now is not None or unpacks(call)):
            kept = [
                given
                for given in call.args
                if given.keyword is None
                or given.keyword.value not in _USES_OF_WORKERS - {"num_workers"}
            ]
            if len(kept) < len(call.args):
                kept[-1] = kept[-1].with_changes(comma=call.args[-1].comma)
            changed = with_arguments(call.with_changes(args=kept), {"num_workers": "0"})
            yield Edit(call, "num_workers=0", ((call, changed),))


def _prepared(code: Code, values: Values) -> Iterator[Edit]:
    """All samples prepared once, in front of the loader."""
    for call in code.calls(*_LOADER):
        given = argument(call, "dataset") or next(iter(positional(call)), None)
        statement = code.around(call, cst.SimpleStatementLine)
        if given is None or statement is None:
            continue
        if _REPEATS.search(code.text):
            yield Edit(call, unsure="an IterableDataset has no samples by index")
        elif _RANDOM.search(_code_of_samples(code, given)):
            yield Edit(call, unsure="samples may be changed at random, each time anew")
        elif isinstance(given, cst.ListComp):
            yield Edit(call, present="a list of prepared samples")
        else:
            block = code.parents[id(statement)]
            name = dotted_name(given)
            lines = [] if name else [f"dataset = {code.source(given)}\n"]
            name = name or "dataset"
            lines.append(f"samples = [{name}[index] for index in range(len({name}))]\n")
            new = [cst.parse_statement(line, config=code.module.config_for_parsing)
                   for line in lines]  # fmt: skip
            new[0] = new[0].with_changes(leading_lines=statement.leading_lines)
            changed = statement.with_changes(leading_lines=[])
            body = list(block.body)
            at = body.index(statement)
            body[at : at + 1] = [*new, changed]
            yield Edit(
                call,
                "samples prepared once",
                ((block, block.with_changes(body=body)), (given, cst.Name("samples"))),
                note="All samples stay in memory, and each stays as it is: nothing may change it"
                " at random.",
            )


def _wanted_workers(values: Values, count: int) -> int:
    """The number of workers that the finding proposes, and at least twice as many as there are."""
    return max(int(values["workers"]), 2 * count)


def _why_no_workers(code: Code, call: Node) -> str:
    """Why a loader must not get worker processes; empty if it may."""
    if _REPEATS.search(code.text):
        return "each worker would repeat the data of an IterableDataset"
    if len(positional(call)) > _WORKERS_PLACE or not overrides(call):
        return "other arguments may set num_workers"
    if _ON_DEVICE.search(_code_of_workers(code, call)):
        return "worker processes would use the device"
    return ""


def _code_of_samples(code: Code, dataset: Node) -> str:
    """The code of this file that a dataset may run: datasets, and what they and it mention.

    A training loop may draw random numbers without changing a sample.
    """
    named: dict[str, list[str]] = {}
    parts = [code.source(dataset)]
    for node in code.nodes:
        if isinstance(node, (cst.ClassDef, cst.FunctionDef)):
            named.setdefault(node.name.value, []).append(code.source(node))
            if isinstance(node, cst.ClassDef) and "def __getitem__" in code.source(node):
                parts.append(code.source(node))
        elif isinstance(node, (cst.Assign, cst.AnnAssign, cst.AugAssign)):
            whole = code.source(node)
            targets = (
                [each.target for each in node.targets]
                if isinstance(node, cst.Assign)
                else [node.target]
            )
            for name in {word for each in targets for word in _words(code.source(each))}:
                named.setdefault(name, []).append(whole)
    for node in code.nodes:  # such as `steps.append(RandomCrop(28))`
        if code.is_call(node, "*.append", "*.insert", "*.extend", "*.set_transform"):
            for name in _words(code.source(node.func)):
                if name in named:
                    named[name].append(code.source(node))
    seen = 0
    while seen < len(parts):  # `parts` grows by what its parts mention
        for name in _words(parts[seen]):
            parts += named.pop(name, [])
        seen += 1
    return "\n".join(parts)


def _words(source: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"[A-Za-z_]\w*", source)))


def _code_of_workers(code: Code, call: Node) -> str:
    """The code of this file that worker processes would run: datasets and `collate_fn`."""
    collate = argument(call, "collate_fn")
    parts = [] if collate is None else [code.source(collate)]
    for node in code.nodes:
        if isinstance(node, cst.ClassDef):
            source = code.source(node)
            parts += [source] if "def __getitem__" in source else []
        elif isinstance(node, cst.FunctionDef) and dotted_name(collate) == node.name.value:
            parts.append(code.source(node))
    return "\n".join(parts)


def _pinned(code: Code, values: Values) -> Iterator[Edit]:
    """Batches in pinned memory, and copies of them that do not wait."""
    for call in code.calls(*_LOADER):
        copies = list(_copies_of_batches(code, code.target(call)))
        if not copies:
            continue
        given = argument(call, "pin_memory")
        is_pinned = is_name(given, "True")
        is_set_elsewhere = given is not None and not is_pinned and not is_name(given, "False")
        if is_set_elsewhere or (
            not is_pinned and (unpacks(call) or len(positional(call)) > _PIN_PLACE)
        ):
            yield Edit(call, unsure="other arguments may set pin_memory")
            continue
        if _ON_DEVICE.search(_code_of_workers(code, call)):
            yield Edit(call, unsure="the batches may be on the device already")
            continue
        changes = [(copy, with_argument(copy, "non_blocking", "True")) for copy in copies]
        if not is_pinned:
            changes.append((call, with_argument(call, "pin_memory", "True")))
        yield Edit(call, "pin_memory=True, non_blocking=True", tuple(changes))


def _copies_of_batches(code: Code, loader: str) -> Iterator[Node]:
    """The first copies to a device, in loops over a loader, of what the loader yields.

    Copies back to the host must block; otherwise, the host reads data that has not arrived.
    """
    for loop in code.nodes:
        if not isinstance(loop, cst.For) or not loader:
            continue
        if loader not in {dotted_name(node) for node in inside(loop.iter)}:
            continue
        batch = {node.value for node in inside(loop.target) if isinstance(node, cst.Name)}
        for node in inside(loop.body):
            if not code.is_call(node, "*.to", "*.cuda"):
                continue
            name = dotted_name(node.func.value)
            if name in batch and _is_to_device(code, node):
                batch.discard(name)
                yield node


def _is_to_device(code: Code, call: Node) -> bool:
    if call.func.attr.value == "cuda":
        return not call.args
    if len(call.args) != 1 or call.args[0].keyword is not None:
        return False
    where = code.source(call.args[0].value)
    return _DEVICE.search(where) is not None and "cpu" not in where.lower()


FIXES = (
    Fix(
        "no-loader-workers",
        ("DataLoader",),
        _no_workers,
        "Loaders whose number of workers is set elsewhere.",
    ),
    Fix(
        "loader-workers",
        ("DataLoader",),
        _workers,
        "Datasets that use the device or that each worker would repeat, and numbers that are set"
        " elsewhere.",
        Part.LOADER_WORKERS,
    ),
    Fix(
        "prepared-samples",
        ("DataLoader",),
        _prepared,
        "Datasets without an index, and files that change samples at random.",
    ),
    Fix(
        "pin-batches",
        ("DataLoader",),
        _pinned,
        "Batches that may be on the device already, and loaders whose arguments are unpacked.",
    ),
)
