"""XProf on xplanes: overview page, input pipeline and kernel statistics.

It writes intermediate results next to its input, so pass a copy.
"""

import json
import sys
from time import perf_counter

_began = perf_counter()

from xprof.convert import raw_to_tool_data  # noqa: E402 - importing is timed

_imported = perf_counter()
for tool in ("overview_page", "input_pipeline_analyzer", "kernel_stats"):
    data, _ = raw_to_tool_data.xspace_to_tool_data(sys.argv[1:], tool, {})
    if not data:
        sys.exit(f"{tool} gave nothing")
print(json.dumps({"imports_s": _imported - _began, "work_s": perf_counter() - _imported}))
