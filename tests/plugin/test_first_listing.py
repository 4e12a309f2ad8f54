"""Opening the list of captures costs TensorBoard's process little, which all plugins share."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
# Four of them know what the user set aside, which no row of the list begins with, and two
# which programs run that can be recorded. One names the timers of a run.
MOST_MODULES = 78
# TensorBoard's parts that this uses load no NumPy, so what is loaded after them is our doing.
PROGRAM = """
    import argparse, sys, time
    from tensorboard.plugins import base_plugin
    from werkzeug.test import Client
    assert "numpy" not in sys.modules
    from tb_perfadvisor.plugin.loader import PerfAdvisorLoader
    logdir = sys.argv[1]
    context = base_plugin.TBContext(logdir=logdir, flags=argparse.Namespace(logdir=logdir))
    plugin = PerfAdvisorLoader().load(context)
    client = Client(plugin.get_plugin_apps()["/api/v1/*"])
    for _ in range(300):
        answer = client.get("/data/plugin/perf_advisor/api/v1/captures").json
        if not answer["scan"]["is_scanning"]:
            break
        time.sleep(0.1)
    print(len(answer["captures"]))
    print(*(name for name in sys.modules if name.split(".")[0] in ("numpy", "tb_perfadvisor")))
"""


def test_the_first_listing_loads_few_modules_no_signals_and_no_numpy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(REPOSITORY / "demo_logs")],
        cwd=REPOSITORY,
        env={**os.environ, "PERFADVISOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, names = done.stdout.splitlines()
    loaded = names.split()
    ours = [name for name in loaded if name.startswith("tb_perfadvisor")]
    assert int(count) >= 10, "profiles of several formats were listed"
    assert "tb_perfadvisor.contract.run_row" in ours
    assert [name for name in loaded if name.startswith("numpy")] == []
    assert [name for name in ours if name.startswith("tb_perfadvisor.signals")] == []
    assert len(ours) <= MOST_MODULES
