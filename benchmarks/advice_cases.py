"""Cases to judge the advice by: captures with independently known facts.

*Recorded* pairs come from this project's own programs, with true step times; *drawn* ones from
the rules' tests; *demo* pairs from ``demo_logs/``; the *corpus* has other people's profiles, with
what they are known to show.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from processes import ROOT
from recorded_pairs.catalog import PAIRS, RecordedPair, split_of
from tb_perfadvisor import analyze, compare, testing
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.rules.registry import all_rules
from tb_perfadvisor.signals import Options, reference_worker
from tb_perfadvisor.testing.builder import run_of
from tb_perfadvisor.trace import Run, Trace

REPETITIONS = 5


@dataclass(frozen=True, slots=True)
class Gain:
    """What the fix of a slow program saves per step, in nanoseconds, without the profiler."""

    slow_ns: float
    saved_ns: float
    noise_ns: float
    """Half the distance between the second smallest and the second largest of the gains of all
    repetitions; 0 where there is no noise."""

    @property
    def share(self) -> float:
        """The duration of the slow step."""
        return self.saved_ns / self.slow_ns


@dataclass(frozen=True, slots=True)
class Case:
    """A capture and what is known about it."""

    name: str
    source: str
    """`recorded`, `drawn`, `demo` or `corpus`."""
    split: str
    """`tune` or `test`; empty where nothing is tuned on it."""
    first: tuple[str, ...]
    """Rules of which one should rank first; empty for a healthy program."""
    still_true: tuple[str, ...]
    """Rules that are right about a program with nothing else to mend."""
    gain: Gain | None
    analyze: Callable[[], Report]

    @property
    def accepted(self) -> frozenset[str]:
        """The rules that may rank first: those named, and the general ones that they refine."""
        general = {rule.id: rule.refines for rule in all_rules()}
        return frozenset(self.first) | {
            refined for name in self.first if (refined := general.get(name)) is not None
        }


def recorded(directory: Path) -> Iterator[Case]:
    """The recorded pairs below a directory: two cases per complete repetition."""
    for pair in PAIRS:
        times = dict(_times(directory / pair.name))
        if not times:
            continue
        gain = _gain(
            [(time["slow"]["step_ns"], time["fixed"]["step_ns"]) for time in times.values()]
        )
        for repetition in times:
            yield from _repetition(pair, gain, repetition)


def _times(directory: Path) -> Iterator[tuple[Path, Any]]:
    for number in range(REPETITIONS):
        path = directory / str(number) / "times.json"
        if path.exists():
            yield path.parent, json.loads(path.read_text(encoding="utf-8"))


def _gain(steps_ns: Sequence[tuple[int, int]]) -> Gain:
    """The median of the repetitions' gains, and how far the middle ones lie apart."""
    gains = sorted(slow_ns - fixed_ns for slow_ns, fixed_ns in steps_ns)
    middle = gains[1:-1] if len(gains) >= REPETITIONS else gains
    return Gain(
        slow_ns=statistics.median(slow_ns for slow_ns, _ in steps_ns),
        saved_ns=statistics.median(gains),
        noise_ns=(middle[-1] - middle[0]) / 2,
    )


def _repetition(pair: RecordedPair, gain: Gain, directory: Path) -> Iterator[Case]:
    for role in ("slow", "fixed"):
        is_slow = role == "slow"
        path = directory / role
        yield Case(
            name=pair.name if is_slow else f"{pair.name}, fixed",
            source="recorded",
            split=split_of(pair),
            first=pair.first if is_slow else (),
            still_true=pair.still_true,
            gain=gain if is_slow else None,
            analyze=lambda path=path: analyze(path),  # type: ignore[misc]
        )


def demo() -> Iterator[Case]:
    """The pairs in the repository, with their labels."""
    labels: dict[str, Any] = {}
    for path in sorted((ROOT / "demo_logs").glob("*/label.json")):
        label = json.loads(path.read_text(encoding="utf-8"))
        labels[label["id"]] = label
    for name, label in labels.items():
        is_slow = label["role"] == "slow"
        steps = label["true_step_ns"], labels[label["pair"]]["true_step_ns"]
        repetitions = zip(*(step["repetitions"] for step in steps), strict=True)
        yield Case(
            name=name,
            source="demo",
            split="",
            first=tuple(label["acceptable_first_findings"]),
            still_true=(),
            gain=_gain(list(repetitions)) if is_slow else None,
            analyze=lambda name=name: analyze(ROOT / "demo_logs" / name),  # type: ignore[misc]
        )


# What other people's profiles are known to show: by their own documentation, by other tools, or
# by a second recording of the same program, whose step time then gives the true gain.
_STALL = ("loader-in-main-process", "python-fed-input", "tfdata-sequential-map", "input-stall")
_SHOWN: Mapping[str, tuple[str, ...]] = {
    "kineto/resnet50_num_workers_0": _STALL,
    "kineto/resnet50_num_workers_4": ("full-precision-compute", "tf32-off", "tensor-cores-idle"),
    "local-torch2.13-cpu/conv_dl0_slow_rich": _STALL,
    "local-torch2.13-cpu/conv_dl0_slow_plain": _STALL,
    "local-torch2.13-cpu/ddp_gloo_2rank_straggler": ("straggler",),
    "local-tf-cpu/keras_slow_input": _STALL,
    "local-jax-cpu/train_steps_host_bound": ("python-overhead",),
    "sam-fast/asdf_False_a73da0d1": ("device-synchronization",),
    "sam-fast/asdf_True_10b61b2f": ("device-synchronization", "launch-bound"),
    "tracelens/h100/google_owlv2-large-patch14-ensemble": _STALL,
    "tracelens/h100/Falconsai_nsfw_image_detection": ("launch-bound", "python-overhead"),
    "tracelens/h100/gaunernst_bert-small-uncased": ("launch-bound", "python-overhead"),
    "quentin-tutorial/transformer": ("launch-bound", "python-overhead"),
    "hta/nccl_parser_config": ("launch-bound", "device-synchronization", "python-overhead"),
    "hta/trace_diff_test": ("full-precision-compute", "tf32-off", "tensor-cores-idle"),
    "xprof-test": ("host-offload-copies", "exposed-copies"),
    "xprof-demo/plugins/profile/GPU-input-bound": ("input-stall",),
}
_FIXED: Mapping[str, str] = {
    "kineto/resnet50_num_workers_0": "kineto/resnet50_num_workers_4",
    "local-torch2.13-cpu/conv_dl0_slow_rich": "local-torch2.13-cpu/conv_dl0_fast_rich",
    "local-torch2.13-cpu/ddp_gloo_2rank_straggler": "local-torch2.13-cpu/ddp_gloo_2rank",
    "local-tf-cpu/keras_slow_input": "local-tf-cpu/keras_prefetch_fast",
}
_HEALTHY = (
    "local-jax-cpu/train_steps",
    "local-jax-cpu/train_no_step_annotation",
    "local-tf-cpu/keras_prefetch_fast",
    "local-torch2.13-cpu/conv_dl0_fast_rich",
    "local-torch2.13-cpu/ddp_gloo_2rank",
    "local-torch2.13-cpu/mlp_fp32",
    "local-torch2.13-cpu/vit_patchdropout_gather",
    "tracelens/inference_vllm_prefilldecode_piecewise",
    "tracelens/torch_compile_triton",
    "xprof-demo/plugins/profile/Cloud-TPU",
)


def corpus(root: Path) -> Iterator[Case]:
    """Other people's profiles, as far as the folder has them."""
    for name in (*_SHOWN, *_HEALTHY):
        for path in _captures(root / name):
            yield Case(
                name=name,
                source="corpus",
                split="",
                first=_SHOWN.get(name, ()),
                still_true=(),
                gain=_corpus_gain(root, name),
                analyze=lambda path=path: analyze(path),  # type: ignore[misc]
            )


def _captures(path: Path) -> Iterator[Path]:
    """A folder, or each of its files if it has several captures."""
    if path.exists():
        files = sorted(path.glob("*.pt.trace.json"))
        yield from files if len(files) > 1 else [path]


def _corpus_gain(root: Path, name: str) -> Gain | None:
    fixed = _FIXED.get(name)
    if fixed is None or not (root / fixed).exists():
        return None
    change = compare(root / name, root / fixed).targets[0].change
    assert change.low_ns is not None
    assert change.high_ns is not None
    return Gain(change.base_ns, -change.change_ns, (change.high_ns - change.low_ns) / 2)


@dataclass(frozen=True, slots=True)
class _Drawing:
    """A call of `check_rule`."""

    test: str
    rule_id: str
    slow: Run
    fixed: Run
    has_saving: bool
    config: Config


def drawn() -> Iterator[Case]:
    """The slow and fixed drawings of every rule: those that its tests give to `check_rule`.

    Raises:
        RuntimeError: If the tests fail, because drawings of a broken rule prove nothing.
    """
    for drawing in _drawings():
        options = drawing.config.options
        gain = None
        if drawing.has_saving:
            slow_ns = _step_ns(drawing.slow, options)
            gain = Gain(slow_ns, slow_ns - _step_ns(drawing.fixed, options), 0.0)
        yield Case(
            name=drawing.test,
            source="drawn",
            split="",
            first=(drawing.rule_id,),
            still_true=(),
            gain=gain,
            analyze=lambda drawing=drawing: analyze(drawing.slow, drawing.config),  # type: ignore[misc]
        )


def _drawings() -> list[_Drawing]:
    """Run the rules' tests and record the calls of `check_rule`."""
    drawings: list[_Drawing] = []
    check_rule = testing.check_rule
    ignored = {"tolerance", "exactly", "scales", "fixed_applies", "saves", "settings", "options"}

    def listen(rule: Any, *, slow: Any, fixed: Any, **arguments: Any) -> Any:
        checked = check_rule(rule, slow=slow, fixed=fixed, **arguments)
        attributes = {key: value for key, value in arguments.items() if key not in ignored}
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition("/")[2].partition(" ")[0]
        limits = arguments.get("settings")
        drawings.append(
            _Drawing(
                test=test.removeprefix("test_").replace(".py::test_", ": ").replace("_", " "),
                rule_id=rule.id,
                slow=_run(slow, attributes),
                fixed=_run(fixed, attributes),
                has_saving=arguments.get("saves") is not None,
                config=Config(
                    limits={rule.id: limits} if limits else {},
                    options=arguments.get("options") or Options(),
                ),
            )
        )
        return checked

    testing.check_rule = listen  # the tests import it from there
    output, sys.stdout = sys.stdout, sys.stderr
    try:
        status = pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", str(_RULE_TESTS)])
    finally:
        testing.check_rule, sys.stdout = check_rule, output
    if status != 0:
        raise RuntimeError("the rules' tests fail: mend them first")
    return drawings


_RULE_TESTS = ROOT / "tests" / "rules"


def _run(subject: Any, attributes: Mapping[str, Any]) -> Run:
    if isinstance(subject, Run):
        return subject
    if isinstance(subject, Trace):
        return run_of(subject)
    return run_of(testing.draw(subject, **attributes))


def _step_ns(run: Run, options: Options) -> float:
    steps = reference_worker(run, options).steps
    return steps.window_ns / steps.count
