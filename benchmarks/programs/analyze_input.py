"""Analyzes the only capture of a directory as the tab does; prints its time and memory."""

import json
import resource
import sys
from time import process_time

import msgspec

from tb_perfadvisor import analyze
from tb_perfadvisor.engine.config import Config

# Import the rules before measuring.
config = Config(with_views=True, with_timelines=True)
config.rules()
began = process_time()
report = analyze(sys.argv[1], config)
size_bytes = len(msgspec.json.encode(report))
print(
    json.dumps(
        {
            "work_s": process_time() - began,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "report_bytes": size_bytes,
            "failed": [each.rule_id for each in report.outcomes if each.status == "failed"],
        }
    )
)
