"""Anonymized exports of Nsight Systems give the same results, without names of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.ingest.anonymize.files import anonymize_file
from tests.ingest.anonymize.test_files import facts
from tests.support.corpus_traces import CORPUS
from tests.support.nsight_exports import PROCESS, THREAD, a_range, call, kernel, write

SECRETS = (b"acme", b"ranker", b"jdoe", b"churn")


def test_names_of_the_user_are_replaced(tmp_path: Path) -> None:
    source = write(
        tmp_path / "report.sqlite",
        {
            1: "void acme::ranker_kernel<float>(float*)",
            2: "cudaLaunchKernel_v7000",
            3: "jdoe_thread",
            4: "churn step 3",
        },
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(at, at + 50, 1, at) for at in range(100, 1000, 100)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(at - 50, at, 2, at) for at in range(100, 1000, 100)],
        NVTX_EVENTS=[
            a_range(50, 400, 4),
            a_range(60, 90, "acme::ranker, op_id = 4, sizes = [[8, 4]]"),
            a_range(500, 700, "jdoe", data=b"acme" * 20),
        ],
        ThreadNames=[(3, THREAD)],
        PROCESSES=[(PROCESS, 500, "/home/jdoe/bin/churn")],
        META_DATA_EXPORT=[("EXPORT_USER", "jdoe"), ("EXPORT_HOST", "acme-node")],
        DIAGNOSTIC_EVENT=[(2, "cannot open /home/jdoe/churn")],
        TARGET_INFO_GPU=[(0, "NVIDIA H100 80GB HBM3", 80 << 30, 132, 9, 0, 0, 0)],
    )
    copy = tmp_path / "copy.sqlite"
    anonymize_file(source, copy)
    content = copy.read_bytes()
    assert not [secret for secret in SECRETS if secret in content]
    assert facts(analyze(copy))["overview"] == facts(analyze(source))["overview"]


@pytest.mark.corpus
def test_results_of_a_recorded_export_stay(tmp_path: Path) -> None:
    source = CORPUS / "gindachen/tests_fixtures_mfu_2gpu_before.sqlite"
    copy = tmp_path / source.name
    anonymize_file(source, copy)
    found, expected = facts(analyze(copy)), facts(analyze(source))
    assert [finding for finding, _ in found.pop("savings")] == [
        finding for finding, _ in expected.pop("savings")
    ]
    assert found == expected
