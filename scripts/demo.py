"""Open TensorBoard on the demo profiles and print the address of the Perf Advisor tab.

python scripts/demo.py [PORT]
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

DEMO_LOGS = Path(__file__).resolve().parents[1] / "demo_logs"
USUAL_PORT = 6006


def free_port() -> int:
    """TensorBoard's usual port, or any free one when that is taken."""
    for port in (USUAL_PORT, 0):
        with socket.socket() as probe:
            # As servers do, so that a port whose last connection just closed counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise SystemExit("no free port")


def main() -> int:
    """Run TensorBoard until it is interrupted."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] else free_port()
    print(f"Perf Advisor: http://localhost:{port}/#perf_advisor", flush=True)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(DEMO_LOGS)]
    try:
        return subprocess.call([*command, "--port", str(port)])
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
