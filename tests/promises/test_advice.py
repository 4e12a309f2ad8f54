"""What the catalog of advice keeps to, so that rules show only advice that fits the program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import advice, rules
from tb_perfadvisor.advice import advise, change, change_ids
from tb_perfadvisor.advice.catalog import variants_of
from tb_perfadvisor.signals.workload.fit import fitting
from tb_perfadvisor.signals.workload.workload import OWN_THE_LOOP, SERVERS, Fact, Part, Workload
from tb_perfadvisor.toml_files import parse
from tests.support.advice_words import misfits

IMPLIED = {
    Part.LOADER_WORKERS: Part.LOADER,
    Part.VLLM: Part.SERVER,
    Part.SGLANG: Part.SERVER,
    Part.FUSED_OPTIMIZER: Part.OPTIMIZER,
    Part.ADAM: Part.OPTIMIZER,
    Part.SGD: Part.OPTIMIZER,
    Part.FOREACH_OPTIMIZER: Part.OPTIMIZER,
    Part.OWN_OPTIMIZER: Part.OPTIMIZER,
    Part.INDUCTOR: Part.TORCH_COMPILE,
}
"""Parts that are there whenever another one is."""
CHANGES = tuple(change(change_id) for change_id in change_ids())
REMEDIES = tuple(remedy for each in CHANGES for remedy in advise(each.id))


def test_a_remedy_names_only_what_programs_that_see_it_have() -> None:
    """Try it on the least program that it fits, and on that with each other part added."""
    found = []
    for remedy in REMEDIES:
        named = f"{remedy.text}\n{remedy.snippet}"
        for part in (None, *Part):
            parts = {*remedy.needs, *((part,) if part is not None else ())}
            parts |= {IMPLIED[part] for part in parts & set(IMPLIED)}
            program = Workload("unknown", tuple(Fact(part, "seen") for part in parts))
            if not _contradict(parts, remedy.framework) and remedy.fits(program):
                words = misfits(named, {part.label for part in parts})
                found += [(remedy.change, word, part) for word in words]
    assert found == []


def _contradict(parts: set[Part], framework: str) -> bool:
    """Whether no program has all these parts."""
    training = {
        *(Part.TRAINING, Part.OPTIMIZER, Part.FUSED_OPTIMIZER, Part.GRADIENTS_16_BIT, Part.DDP),
        *(Part.HF_TRAINER, Part.TORCHTITAN, Part.CHECKPOINTING, Part.DEEPSPEED),
        *(Part.ADAM, Part.SGD, Part.FOREACH_OPTIMIZER, Part.OWN_OPTIMIZER),
    }
    forward = {Part.FORWARD_ONLY, Part.SERVER, *SERVERS, Part.HF_PIPELINE}
    kinds = ({Part.GPU, Part.NVIDIA, Part.AMD, Part.DEVICE_GRAPHS}, {Part.TPU}, {Part.CPU_ONLY})
    return (
        bool(parts & training and parts & forward)
        or sum(bool(parts & kind) for kind in kinds) > 1
        or {Part.NVIDIA, Part.AMD} <= parts
        # Only programs of PyTorch are told apart so far.
        or (framework in ("tensorflow", "jax") and bool(parts & forward))
    )


NAMED_PARTS = {
    # An optimizer, unless a call of another library returns one.
    r"torch\.optim\b|\boptim=|[Tt]he optimizer|optimizer state|\"optimizer\"|_foreach_": {
        *(Part.OPTIMIZER, Part.TRAINING, Part.FORWARD_ONLY, Part.FUSED_OPTIMIZER),
        *(Part.ADAM, Part.SGD, Part.FOREACH_OPTIMIZER, Part.OWN_OPTIMIZER),
    },
    r"DataLoader\(|num_workers|[Tt]he loader|DeviceLoader": {Part.LOADER, Part.LOADER_WORKERS},
    r"DistributedDataParallel|\bDDP|\bddp": {Part.DDP, Part.DATA_PARALLEL, Part.MEGATRON},
    r"cuda\.[Ss]tream\b|(?:separate|own|another) stream": {Part.COPY_STREAM},
    r"\b[Pp]in(?:s|ned|_memory)?\b": {Part.PINNED_BATCHES},
    r"GPU graphs?|graph\.replay|replay|cudagraph|cuda-graph|reduce-overhead": {
        *(Part.DEVICE_GRAPHS, Part.INDUCTOR),
    },
    r"torch\.compile|[Cc]ompile the|(?<!TPU )compiler|_inductor": {
        *(Part.TORCH_COMPILE, Part.INDUCTOR, Part.DEVICE_GRAPHS),
    },
}
"""Parts that a remedy changes if its words are found in it, and conditions that are about them."""
ALWAYS = {
    "MpDeviceLoader takes any iterable.": {
        "batches-on-device",
    },
    "It pins what it packs, which is a new tensor.": {
        "packed-copies",
    },
    "A replay reads its own buffers: they are filled from pinned memory by code like this only.": {
        "replay-ahead",
    },
    "The calls that allocate pinned memory were recorded.": {
        "reused-staging-buffer",
    },
    "Work that waits has a stream; whether another one helps depends on the code.": {
        "look-at-blocked-work",
    },
    "Only steps that are launched kernel by kernel propose it, also beside steps in graphs.": {
        "server-graphs",
    },
    "Only graph breaks propose it, which the compiler makes.": {
        "change-broken-lines",
        "failed-backend",
        "list-graph-breaks",
    },
    "Only recorded compilations propose it.": {
        "compile-cache",
        "compile-blocks",
        "fixed-shapes",
    },
    "Averages and clipping are beside the optimizer, whichever it is.": {
        "list-operators",
    },
    "Only looks at the program while Keras makes a model propose it.": {
        "one-model",
    },
    "Only copies from pageable memory propose it, beside which others may be pinned.": {
        "pinned-memory",
    },
    "Only copies to pageable memory propose it.": {
        "results-to-pinned-memory",
    },
    "Only copies that are exposed propose it; pageable ones are to be pinned, too.": {
        "copy-ahead",
    },
    "Where the program compiles, conversion comes first; compiling is not the advice.": {
        "fp8",
    },
}
"""Changes that name a part without a condition on it, by why they may."""
ENTRIES = {
    key: entry
    for path in sorted(Path(advice.__file__).parent.glob("*.toml"))
    for key, entry in parse(path.read_text(encoding="utf-8")).items()
}


def test_what_names_a_part_has_a_condition_on_it_or_says_why_not() -> None:
    """Advice for PyTorch must not be what the program does already, or has no part for."""
    unconditional = {
        change_id
        for change_id in ENTRIES
        for remedy in change(change_id).remedies
        for words, parts in NAMED_PARTS.items()
        if remedy.framework in ("pytorch", "")
        if re.search(words, f"{remedy.text}\n{remedy.snippet}")
        # That a trainer owns the place of the code says nothing about the part.
        if not {*remedy.needs, *set(remedy.unless).difference(OWN_THE_LOOP)} & parts
    }
    assert unconditional == {change_id for changes in ALWAYS.values() for change_id in changes}


ONLY_OWNERS = {
    # How the model is wrapped, and what trains it.
    "step": {
        *("DistributedDataParallel", "init_process_group", "init_device_mesh", "fully_shard"),
        *("register_comm_hook", "no_sync", "autocast", "GradScaler", "backward", "zero_grad"),
    },
    "loader": {"DataLoader", "DistributedSampler"},
    "optimizer": {"Adam", "AdamW", "SGD", "RMSprop"},
}
"""What PyTorch's users call in some place of a program."""
EDITED = {
    "step": {"autocast", "larger-buckets", "smaller-buckets", "set-to-none"},
    "loader": {"loader-workers", "no-loader-workers", "pin-batches", "prepared-samples"},
    "optimizer": {"fused-optimizer"},
}
"""The fixes of `suggest` that edit such calls."""
OWNED = {
    Part.LIGHTNING: {"step"},
    Part.HF_TRAINER: {"step", "loader", "optimizer"},
    Part.DEEPSPEED: {"step"},
    Part.MEGATRON: {"step", "loader", "optimizer"},
    Part.TORCHTITAN: {"step", "loader", "optimizer"},
}
"""What users of these frameworks do not write, by their documentation."""
PROGRAMS: tuple[tuple[Part, ...], ...] = (
    (Part.GPU, Part.NVIDIA, Part.DDP, Part.LOADER, Part.OPTIMIZER, Part.ADAM),
    (Part.GPU, Part.AMD, Part.FSDP, Part.LOADER, Part.LOADER_WORKERS, Part.OPTIMIZER, Part.SGD),
    (Part.GPU, Part.DATA_PARALLEL, Part.LOADER, Part.OPTIMIZER, Part.FOREACH_OPTIMIZER),
    (Part.GPU, Part.TENSOR_PARALLEL, Part.PIPELINE_PARALLEL, Part.TORCH_COMPILE, Part.INDUCTOR),
    (Part.CPU_ONLY, Part.LOADER, Part.OPTIMIZER, Part.OWN_OPTIMIZER),
)


def _called(code: str) -> set[str]:
    calls = [node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return {getattr(call, "attr", getattr(call, "id", "")) for call in calls}


@pytest.mark.parametrize("trainer", OWNED, ids=lambda part: part.label)
def test_who_has_a_trainer_is_shown_no_code_that_only_the_trainer_runs(trainer: Part) -> None:
    found, shown = [], 0
    for parts in PROGRAMS:
        facts = (Fact(part, "seen") for part in (trainer, Part.TRAINING, *parts))
        program = Workload("pytorch", tuple(facts))
        for each in CHANGES:
            for remedy in fitting(advise(each.id), program):
                shown += bool(remedy.snippet)
                called = _called(remedy.snippet) if remedy.language == "python" else set()
                found += [
                    (each.id, place, remedy.snippet)
                    for place in OWNED[trainer]
                    if called & ONLY_OWNERS[place] or set(remedy.fixes) & EDITED[place]
                ]
    assert found == []
    assert shown > 100


def _hidden(entries: dict[str, dict[str, Any]]) -> list[str]:
    """Entries whose text is for all frameworks, and whose variants are for some of them only."""
    return [
        change_id
        for change_id, entry in entries.items()
        if "text" in entry and entry.get("framework", "any") == "any" and variants_of(entry)
        if all(variant.get("framework", "any") != "any" for variant in variants_of(entry))
    ]


def test_a_variant_hides_advice_from_no_other_framework() -> None:
    assert _hidden(ENTRIES) == []
    special = {"text": "Use streams."}
    entries = {"hidden": {"text": "Do more.", "none": [special]}}
    entries["shown"] = {"text": "Do more.", "none": [special], "gpu": [{"code": "f()"}]}
    assert _hidden(entries) == ["hidden"]


def test_no_text_of_an_entry_is_replaced_in_all_of_its_variants() -> None:
    replaced = [
        change_id
        for change_id, entry in ENTRIES.items()
        if "text" in entry and (variants := variants_of(entry))
        if all("text" in each for each in variants)
    ]
    assert replaced == []


def test_the_catalog_is_cut_into_its_entries() -> None:
    """Entries are found without a parser; here a parser reads the whole files."""
    entries = [
        key
        for path in Path(advice.__file__).parent.glob("*.toml")
        for key in parse(path.read_text(encoding="utf-8"))
    ]
    assert sorted(entries) == sorted(each.id for each in CHANGES if each.id not in HINTS)


HINTS = {"record-stacks", "record-later"}
"""Changes in the words of the hints on recording."""


def test_a_remedy_can_be_read_and_run() -> None:
    for remedy in REMEDIES:
        assert remedy.text.endswith("."), remedy
        assert "{{" not in remedy.text + remedy.snippet, remedy
        assert not remedy.reference or re.match(r"https://[\w.-]+/", remedy.reference), remedy
        if remedy.language == "python":
            ast.parse(remedy.snippet, filename=remedy.change)


def test_no_two_changes_say_and_do_the_same() -> None:
    said: dict[tuple[str, str, str], str] = {}
    for remedy in REMEDIES:
        what = (remedy.text, remedy.snippet, remedy.framework)
        assert said.setdefault(what, remedy.change) == remedy.change


def _named_in_rules() -> Iterator[tuple[str, str]]:
    """The changes that rules name, each with the file: in `advise(...)`, or in tables for it."""
    known = {change_id for change_id in change_ids() if "-" in change_id}  # others are common words
    for path in Path(rules.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "advise"
            given = node.args if is_call else getattr(node, "elts", [])
            texts = [each.value for each in given if isinstance(each, ast.Constant)]
            if is_call or not known.isdisjoint(texts):
                yield from ((str(text), path.name) for text in texts)
    for path in Path(rules.__file__).parent.rglob("*.toml"):
        for entry in parse(path.read_text(encoding="utf-8")).values():
            if isinstance(entry, dict):
                yield from ((text, path.name) for text in entry.get("changes", ()))


def test_rules_name_changes_of_the_catalog() -> None:
    assert [named for named in _named_in_rules() if named[0] not in change_ids()] == []


def test_a_rule_names_each_change() -> None:
    texts = "".join(
        path.read_text(encoding="utf-8")
        for pattern in ("*.py", "*.toml")
        for path in Path(rules.__file__).parent.rglob(pattern)
    )
    assert [change_id for change_id in change_ids() if f'"{change_id}"' not in texts] == []


def test_values_are_filled_in() -> None:
    (fits, ask) = advise("fitting-sizes", "ask-tpu-compiler", size=130, fits=128, question="ask")
    assert fits.snippet == "size = 128  # instead of 130"
    assert fits.values == (("size", 130), ("fits", 128))
    assert ask.snippet == "ask"


def test_what_the_catalog_lacks_is_refused() -> None:
    with pytest.raises(LookupError, match="no change 'no-such-change'"):
        advise("no-such-change")
    with pytest.raises(LookupError, match="none of fitting-sizes has a value sizes"):
        advise("fitting-sizes", sizes=3)
