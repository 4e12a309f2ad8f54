"""The recorded programs with a mechanical fix: the patch applies and keeps their results.

`programs/` are the slow variants of recorded pairs as a user would write them, `findings.json` what
was found in the recorded profiles of those pairs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.advice import advise
from tb_perfadvisor.contract import model
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.signals.workload.workload import Part
from tb_perfadvisor.sources import Repository
from tb_perfadvisor.suggest import Suggestion, suggest
from tests.support.command import SLOW
from tests.support.patches import git_apply

PROGRAMS = Path(__file__).with_name("programs")
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))
FINDINGS: dict[str, Any] = json.loads(Path(__file__).with_name("findings.json").read_text("utf-8"))

# What the change of the recorded pair is, in the patch of the first finding or of those inside.
EXPECTED = {
    "ddp_buckets": "bucket_cap_mb=25",
    "jax_eager": "@jax.jit",
    "jax_eager_optimizer": "@jax.jit",
    "keras_decode_ahead": ".cache()",
    "keras_eager": "run_eagerly=False",
    "keras_map_busy_cores": ".cache()",
    "keras_map_free_cores": "num_parallel_calls=tf.data.AUTOTUNE",
    "keras_no_prefetch": ".prefetch(tf.data.AUTOTUNE)",
    "keras_png": ".cache()",
    "keras_small_batches": "steps_per_execution=50",
    "keras_transform": ".cache()",
    "tf_eager": "@tf.function",
    "torch_epochs": "persistent_workers=True",
    "torch_few_workers": "num_workers=4",
    "torch_heavy_decode": "default=4",
    "torch_latency": "num_workers=4",
    "torch_parameter_average": "get_ema_multi_avg_fn(0.999)",
    "torch_single_tensor_optimizer": "fused=True",
}


def report_of(name: str) -> Report:
    """A report with what was found in the recorded profile of a pair."""
    report = analyze(SLOW)
    finding = report.findings[0]
    found = []
    for each in FINDINGS[name.replace("_", "-")]:
        remedies = [_shown(remedy) for remedy in each["remedies"]]
        found.append(
            replace(
                finding,
                rule_id=each["rule_id"],
                refines=each["refines"],
                title=each["title"],
                heading=None,
                evidence=[],
                places=[],
                remedies=remedies,
            )
        )
    # Only a program whose profile shows workers is advised to use more of them than it has.
    more = any(remedy.change == "more-loader-workers" for each in found for remedy in each.remedies)
    shown = [*report.workload.input, *([Part.LOADER_WORKERS.label] if more else [])]
    return replace(
        report, findings=found, first=None, workload=replace(report.workload, input=shown)
    )


def _shown(remedy: Mapping[str, Any]) -> model.Remedy:
    """A remedy as a report shows it, with what the catalog says of its change now."""
    # Where a framework may own the place of the code, a second one is without.
    known, *_ = [
        each
        for each in advise(remedy["change"], **remedy.get("values", {}))
        if [part.name for part in each.needs] == remedy["needs"]
        and each.framework == remedy["framework"]
    ]
    return model.Remedy(
        text=known.text,
        snippet=known.snippet or None,
        language=known.language,
        framework=known.framework,
        reference=None,
        change=known.change,
        fixes=list(known.fixes),
        values=dict(known.values),
    )


def first_patches(name: str, directory: Path) -> list[Suggestion]:
    """The patches for the first finding and what refines it, on a copy of the program."""
    text = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    (directory / f"{name}.py").write_text(text, encoding="utf-8")
    suggestions = suggest(report_of(name), Repository(directory))
    return [each for each in suggestions if each.number.startswith("1") and each.patch]


@pytest.mark.parametrize("name", NAMES)
def test_the_patch_applies_and_makes_the_change(name: str, tmp_path: Path) -> None:
    suggestions = first_patches(name, tmp_path)
    before = (tmp_path / f"{name}.py").read_text(encoding="utf-8")
    git_apply(tmp_path, "\n".join(each.patch for each in suggestions))
    after = (tmp_path / f"{name}.py").read_text(encoding="utf-8")
    assert EXPECTED[name] not in before
    assert EXPECTED[name] in after
    compile(after, name, "exec")
    # Few lines change: formatting and comments stay.
    changed = set(after.splitlines()) - set(before.splitlines())
    assert 1 <= len(changed) <= 6


_ON_CPU = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
_RUN = """
import importlib.util, json, sys
results = {}
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location(path.rpartition("/")[2][:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    results[path] = module.run()
print(json.dumps(results))
"""


@pytest.mark.frameworks
@pytest.mark.parametrize(
    "framework",
    ["torch_", "ddp_", pytest.param("keras_", marks=pytest.mark.nightly), "tf_", "jax_"],
)
def test_patched_programs_give_the_same_results(framework: str, tmp_path: Path) -> None:
    names = [name for name in NAMES if name.startswith(framework)]
    before, after = [], []
    for name in names:
        for folder, paths in ((tmp_path / name, before), (tmp_path / f"{name}-patched", after)):
            folder.mkdir()
            paths.append(folder / f"{name}.py")
        text = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
        before[-1].write_text(text, encoding="utf-8")
        patches = first_patches(name, after[-1].parent)
        git_apply(after[-1].parent, "\n".join(each.patch for each in patches))
        assert after[-1].read_text(encoding="utf-8") != text
    results = [_results(paths) for paths in (before, after)]
    for name in names:
        first, second = (result[name] for result in results)
        assert len(first) >= 2
        # A fused optimizer and a compiled step round differently.
        assert second == pytest.approx(first, rel=1e-3), name


def _results(paths: list[Path]) -> dict[str, list[float]]:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *map(str, paths)],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, **_ON_CPU},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[float]] = msgspec.json.decode(done.stdout.splitlines()[-1])
    return {Path(path).stem: values for path, values in found.items()}
