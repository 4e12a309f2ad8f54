"""Describes the training runs of a directory; prints its time and memory."""

import json
import resource
import sys
from time import process_time

from tb_perfadvisor.api.training import describe_runs

began = process_time()
described = [run.training for run in describe_runs(sys.argv[1])]
print(
    json.dumps(
        {
            "work_s": process_time() - began,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "described": sum(training is not None for training in described),
            "failed": [],
        }
    )
)
