"""The PyTorch plugin on Kineto traces: everything its loader does for the workers of a run."""

import json
import sys
import tempfile
from time import perf_counter

_began = perf_counter()

from torch_tb_profiler.profiler.data import (  # noqa: E402 - importing is timed
    DistributedRunProfileData,
    RunProfileData,
)
from torch_tb_profiler.profiler.run_generator import RunGenerator  # noqa: E402

_imported = perf_counter()
with tempfile.TemporaryDirectory() as cache:
    for number, path in enumerate(sys.argv[1:]):
        worker = f"worker{number}"
        data = RunProfileData.parse(worker, None, path, cache)
        profile = RunGenerator(worker, None, data).generate_run_profile()
        distributed = DistributedRunProfileData(data)
print(json.dumps({"imports_s": _imported - _began, "work_s": perf_counter() - _imported}))
