"""What the plugin adds to TensorBoard's start."""

import json
from time import perf_counter

from tensorboard.plugins import base_plugin  # noqa: F401 - TensorBoard has it by then

_began = perf_counter()

import tb_perfadvisor.plugin.loader  # noqa: E402, F401 - importing is timed

print(json.dumps({"work_s": perf_counter() - _began}))
