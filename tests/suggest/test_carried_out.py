"""Which changes of the catalog of advice `suggest` carries out, and that it leaves others alone."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.advice import Remedy, advise, change_ids
from tb_perfadvisor.contract import model
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.sources import Repository
from tb_perfadvisor.suggest import Suggestion, suggest
from tb_perfadvisor.suggest.suggestions import FIXES
from tests.support.command import SLOW
from tests.support.patches import added

CARRIED_OUT = {
    "autocast": {"bfloat16"},
    "cache": {"cached-records", "prepare-once"},
    "channels-last": {"channels-last"},
    "compile": {"compile"},
    "detach-losses": {"keep-on-device", "read-rarely"},
    "donate": {"donated-arguments"},
    "fused-optimizer": {"fused-host-optimizer", "fused-optimizer"},
    "jit": {"one-jit"},
    "keras-graph": {"compiled-step"},
    "larger-buckets": {"larger-buckets"},
    "list-averages": {"list-operators"},
    "loader-workers": {"loader-workers", "more-loader-workers"},
    "no-loader-workers": {"no-loader-workers"},
    "parallel-calls": {"overlapped-input", "parallel-map", "parallel-reads", "prepare-once"},
    "pin-batches": {"pinned-memory"},
    "prepared-samples": {"prepared-samples"},
    "prefetch": {"overlapped-input", "prefetch", "prepare-once"},
    "set-to-none": {"drop-gradients"},
    "smaller-buckets": {"smaller-buckets"},
    "steps-per-execution": {"steps-per-call"},
    "tf-function": {"compiled-step"},
    "tf32": {"tf32"},
    "trainer-arguments": {
        *("activation-checkpointing", "autotune", "bfloat16", "compile", "device-graphs"),
        *("float16", "fused-host-optimizer", "fused-optimizer", "loader-workers"),
        *("more-loader-workers", "read-rarely", "save-rarely"),
    },
}
"""The changes that each fix may carry out."""

REMEDIES = tuple(remedy for change_id in change_ids() for remedy in advise(change_id))
LEFT_ALONE = tuple(remedy for remedy in REMEDIES if not remedy.fixes)

# A program on which nearly every fix would find something to change.
PROGRAM = """
import jax
import lightning as L
import tensorflow as tf
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import TrainingArguments

args = TrainingArguments("out")
trainer = L.Trainer(max_epochs=3)
loader = DataLoader(dataset)
data = tf.data.Dataset.range(9).map(decode).batch(8)
model = DistributedDataParallel(Net().to(device), bucket_cap_mb=5)
optimizer = torch.optim.AdamW(model.parameters())
step = jax.jit(update, static_argnums=1)

for x, y in loader:
    x = x.to(device)
    optimizer.zero_grad(set_to_none=False)
    loss = criterion(model(x), y)
    loss.backward()
    total += loss.item()
    w = step(w, 3)

if __name__ == "__main__":
    network.compile(optimizer=optimizer, loss=loss, run_eagerly=True)
"""


@cache
def _analyzed() -> Report:
    return analyze(SLOW)


def suggested(folder: Path, *remedies: Remedy, code: str = PROGRAM) -> Suggestion:
    """The suggestion for one finding with some remedies."""
    (folder / "train.py").write_text(code, encoding="utf-8")
    shown = [
        model.Remedy(
            text=remedy.text,
            snippet=remedy.snippet or None,
            language=remedy.language,
            framework=remedy.framework,
            reference=None,
            change=remedy.change,
            fixes=list(remedy.fixes),
            values=dict(remedy.values),
        )
        for remedy in remedies
    ]
    report = _analyzed()
    finding = replace(report.findings[0], evidence=[], places=[], remedies=shown)
    report = replace(report, findings=[finding], first=None)
    (suggestion,) = suggest(report, Repository(folder))
    return suggestion


def test_fixes_carry_out_these_changes() -> None:
    carried: dict[str, set[str]] = {}
    for remedy in REMEDIES:
        for fix in remedy.fixes:
            carried.setdefault(fix, set()).add(remedy.change)
    assert carried == CARRIED_OUT
    assert {fix.id for fix in FIXES} == set(CARRIED_OUT)
    assert all(fix.refuses.endswith(".") for fix in FIXES)


def test_every_other_change_is_left_alone(tmp_path: Path) -> None:
    """Whatever their texts and code say."""
    suggestion = suggested(tmp_path, *LEFT_ALONE)
    assert (suggestion.outcome, suggestion.patch) == ("none", "")


def test_texts_and_code_do_not_matter(tmp_path: Path) -> None:
    """All texts and code of the catalog, on a remedy without a fix and on one with it."""
    everything = "\n".join(f"{remedy.text}\n{remedy.snippet}" for remedy in REMEDIES)
    says_all = replace(LEFT_ALONE[0], text=everything, snippet=everything)
    assert suggested(tmp_path, says_all).outcome == "none"
    fixed = replace(says_all, fixes=("set-to-none",))
    assert added(suggested(tmp_path, fixed)) == ["optimizer.zero_grad(set_to_none=True)"]


def test_smaller_buckets_never_get_larger(tmp_path: Path) -> None:
    smaller = advise("smaller-buckets", bucket_mb=10)
    suggestion = suggested(tmp_path, *smaller)
    assert (suggestion.outcome, suggestion.patch) == ("unsure", "")
    assert suggestion.reason == "bucket_cap_mb is 5 already"
    large = PROGRAM.replace("bucket_cap_mb=5", "bucket_cap_mb=50")
    assert added(suggested(tmp_path, *smaller, code=large)) == [
        "model = DistributedDataParallel(Net().to(device), bucket_cap_mb=10)"
    ]
    # 25 MB is what DDP takes by itself.
    default = PROGRAM.replace(", bucket_cap_mb=5", "")
    assert added(suggested(tmp_path, *smaller, code=default)) == [
        "model = DistributedDataParallel(Net().to(device), bucket_cap_mb=10)"
    ]


def test_larger_buckets_never_get_smaller(tmp_path: Path) -> None:
    larger = advise("larger-buckets", bucket_mb=40)
    assert added(suggested(tmp_path, *larger)) == [
        "model = DistributedDataParallel(Net().to(device), bucket_cap_mb=40)"
    ]
    large = PROGRAM.replace("bucket_cap_mb=5", "bucket_cap_mb=50")
    assert suggested(tmp_path, *larger, code=large).reason == "bucket_cap_mb is 50 already"


def test_a_bucket_of_cloud_storage_is_no_bucket_of_gradients(tmp_path: Path) -> None:
    remedies = advise("timed-workers", "shards", "bucket-cache", "local-copy")
    assert any("Cloud Storage" in remedy.text for remedy in remedies)
    assert suggested(tmp_path, *remedies).outcome == "none"


TRAINERS = [remedy for remedy in REMEDIES if "trainer-arguments" in remedy.fixes]


@pytest.mark.parametrize("remedy", TRAINERS, ids=lambda remedy: f"{remedy.change}-{remedy.needs}")
def test_a_trainer_gets_what_the_code_of_the_remedy_shows(remedy: Remedy) -> None:
    (call,) = [
        node
        for node in ast.walk(ast.parse(remedy.snippet))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("TrainingArguments", "Trainer", "Fabric"))
    ]
    given = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    assert given == dict(remedy.values)
