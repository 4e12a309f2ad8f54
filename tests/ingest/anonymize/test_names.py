from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tb_perfadvisor.ingest.anonymize.names import Names
from tb_perfadvisor.ingest.kernels.kernel_names import classify_kernels

NAMES = Names(b"key")


@pytest.mark.parametrize(
    "name",
    [
        "ProfilerStep#7",
        "Optimizer.step#SGD.step",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "nccl:all_reduce",
        "Torch-Compiled Region: 0/0",
        "DistributedDataParallel.forward",
        "execute_context_2(6144)_generation_3(3)",
        "execute_3_context_0(sq0sk0sqsq0sqsk0)_generation_3(sq3sk99sqsq3sqsk99)",
        "step[DECODE bs=32]",
        "step[EXTEND bs=1 toks=107]",
        "step[TARGET_VERIFY bs=8]",
        "[Executor] _forward_step 7: 2 ctx reqs, 6144 ctx tokens, 3 gen reqs",
        "decode[bs=117/128 tok=117 d=117]",
        "prefill[bs=2 tok=14721 ctx=[7803, 6918]]",
    ],
)
def test_markers_stay(name: str) -> None:
    assert NAMES.marker(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "aten::_scaled_dot_product_flash_attention",
        "autograd::engine::evaluate_function: ConvolutionBackward0",
        "IteratorGetNext::DoCompute",
        "Iterator::Root::MapAndBatch::Prefetch",
        "PjitFunction(<lambda>)",
        "%all-reduce.3 = f32[8,128]{1,0:T(8,128)} all-reduce(f32[8,128]{1,0} %fusion.1)",
    ],
)
def test_operators_stay(name: str) -> None:
    assert NAMES.operator(name) == name


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (
            "/home/jdoe/venv/lib/python3.11/site-packages/torch/nn/modules/module.py(1501): _call",
            "site-packages/torch/nn/modules/module.py(1501): _call",
        ),
        (
            "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py(12): run_batch",
            "sglang/srt/managers/scheduler.py(12): run_batch",
        ),
        (
            "torch/utils/data/dataloader.py(701): __next__",
            "torch/utils/data/dataloader.py(701): __next__",
        ),
    ],
)
def test_frames_of_frameworks_keep_the_path_inside_the_package(frame: str, expected: str) -> None:
    assert NAMES.frame(frame) == expected


def test_names_of_the_user_are_hashed() -> None:
    hashed = NAMES.frame("/home/jdoe/acme/ranker.py(12): score_customers")
    assert not {"jdoe", "acme", "ranker", "customers"} & {*hashed.replace("/", " ").split()}
    assert "(12): " in hashed
    # The same word has the same hash, in its own case.
    assert NAMES.marker("acme") in NAMES.frame("src/acme/ranker.py(12): score")
    assert NAMES.marker("Acme") == NAMES.marker("acme").capitalize()
    assert NAMES.marker("AcmeAttention").endswith("Attention")


def test_hashes_depend_on_the_key() -> None:
    assert Names(b"other").host("node1") != NAMES.host("node1") == Names(b"key").host("node1")


def test_network_addresses_are_removed() -> None:
    assert NAMES.marker("step on 10.1.2.3") == "step on 0.0.0.0"


@pytest.mark.parametrize(
    ("frame", "unknown"),
    [
        # Folders named like packages: the user's, because no release has these files.
        ("datasets/acme_loader.py(12): load_churn", ("acme", "churn")),
        ("ray/payroll.py(3): run", ("payroll",)),
        ("lightning/jdoe/trainer.py(3): fit", ("jdoe",)),
        ("triton/ranker.py(3): launch", ("ranker",)),
        ("jax/acme.py(3): step", ("acme",)),
        ("torch/acme/layers.py(3): forward", ("acme",)),
        ("/home/jdoe/acme/datasets/churn.py(3): read", ("jdoe", "acme", "churn")),
        # A framework has this file, but not this function.
        ("datasets/load.py(3): load_acme_churn", ("acme", "churn")),
        ("queue.py(3): payroll_queue", ("payroll",)),
        ("/home/wu/train.py(3): step", ("wu",)),
        ("/home/jdoe/lib/python3.11/acme.py(3): step", ("jdoe", "acme")),
        ("/srv/acme/site-packages/acme_models/net.py(3): f", ("srv", "acme")),
        (r"C:\Users\jdoe\acme\train.py(3): step", ("jdoe", "acme")),
        ("/tmp/torchinductor_jdoe/ab/cab2xyz.py(3): call", ("jdoe",)),
    ],
)
def test_files_of_the_user_are_hashed_wherever_they_lie(
    frame: str, unknown: tuple[str, ...]
) -> None:
    hashed = NAMES.frame(frame)
    assert not [word for word in unknown if word in hashed.lower()], hashed
    assert "(3): " in hashed or "(12): " in hashed


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("datasets/load.py(1): load_dataset", "datasets/load.py(1): load_dataset"),
        ("ray/train/trainer.py(1): fit", "ray/train/trainer.py(1): fit"),
        ("threading.py(975): _bootstrap_inner", "threading.py(975): _bootstrap_inner"),
        (
            "/opt/conda/lib/python3.11/threading.py(975): _bootstrap_inner",
            "lib/python3.11/threading.py(975): _bootstrap_inner",
        ),
        (
            "/opt/env/site-packages/ray/acme_plugin.py(1): f",
            "site-packages/ray/acme_plugin.py(1): f",
        ),
    ],
)
def test_files_that_a_release_has_or_that_are_installed_stay(frame: str, expected: str) -> None:
    assert NAMES.frame(frame) == expected


@pytest.mark.parametrize(
    "kernel",
    [
        "_churn_fwd_kernel_0d1d2de",
        "void acme::rank_customers<float, 4>(float*, int)",
        "_ZN4acme14rank_customersIfLi128EEEvPT_i",
        "triton_poi_fused_acme_churn_0",
        "acmegemm_jdoe",
    ],
)
def test_kernels_of_the_user_are_hashed(kernel: str) -> None:
    hashed = NAMES.kernel(kernel)
    assert not [word for word in ("acme", "churn", "customers", "jdoe") if word in hashed.lower()]


def test_what_a_kernel_is_recognized_by_stays() -> None:
    assert NAMES.kernel("acmegemm_kernel").endswith("gemm_kernel")
    # The lengths of mangled identifiers are those of their hashes, ten letters each.
    assert re.fullmatch(r"_ZN10[q-zjkvwxyz]{10}4gemmIfLi128EEEvPT_i", NAMES.kernel(
        "_ZN4acme4gemmIfLi128EEEvPT_i"
    ))  # fmt: skip


def test_names_of_library_kernels_stay_and_kernels_keep_their_class() -> None:
    # From recorded traces; the file names their sources.
    rows = (Path(__file__).parents[1] / "kernel_names.tsv").read_text(encoding="utf-8")
    names = [row.split("\t")[4] for row in rows.splitlines()[1:]]
    assert len(names) > 100
    copies = [NAMES.kernel(name) for name in names]
    before, after = classify_kernels(names), classify_kernels(copies)
    for column in ("family", "precision", "tensor_cores"):
        changed = np.flatnonzero(getattr(before, column) != getattr(after, column))
        assert not [(names[i], copies[i]) for i in changed]
    # Many names in the file are cut off within a word.
    assert sum(map(str.__eq__, names, copies)) > 0.75 * len(names)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gloo://[fe80::1ff:fe23:4567:890a%eth0]:29500", "gloo://[::]:29500"),
        ("step on 2001:0db8:85a3:0000:0000:8a2e:0370:7334", "step on ::"),
        ("step on ip-10-0-12-34", "step on ip-0.0.0.0"),
        ("link 02:42:ac:11:00:02", "link 00:00:00:00:00:00"),
        # Neither is an address.
        ("aten::add", "aten::add"),
        ("slice [0:8:2] at 12:30:45", "slice [0:8:2] at 12:30:45"),
    ],
)
def test_addresses_are_removed(text: str, expected: str) -> None:
    assert NAMES.operator(text) == expected


@pytest.mark.parametrize("text", ["job 20231105", "job_4111111111111111", "run 550e8400e29b"])
def test_long_numbers_and_ids_are_hashed(text: str) -> None:
    hashed = NAMES.marker(text)
    assert text.split(" ")[-1].split("_")[-1] not in hashed
    assert NAMES.marker(text) == hashed


@pytest.mark.parametrize(
    "text",
    ["f32[50257000,64]", "ProfilerStep#12345678", "tokens 131072", "scale 0.123456789", "bf16bf16"],
)
def test_sizes_steps_and_types_stay(text: str) -> None:
    assert NAMES.operator(text) == text


def test_short_names_in_other_scripts_are_hashed() -> None:
    assert "张三" not in NAMES.marker("step of 张三")


def test_words_that_no_framework_has_are_named() -> None:
    names = Names(b"key")
    names.marker("forward of acme in wu")
    assert names.unlisted_words == ("wu",), "the rest is a framework's, or hashed"
