"""Open TensorBoard on the demo profiles, and then print the address of the Perf Advisor tab.

python scripts/demo.py [PORT]
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

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


def has_started(server: subprocess.Popen[bytes], address: str) -> bool:
    """Wait until a server answers; false if it ends before."""
    while server.poll() is None:
        try:
            urlopen(address, timeout=10).close()
        except (URLError, OSError):
            time.sleep(0.1)
        else:
            return True
    return False


def main() -> int:
    """Run TensorBoard until it is interrupted."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] else free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(DEMO_LOGS)]
    with subprocess.Popen([*command, "--port", str(port)]) as server:
        try:
            address = f"http://localhost:{port}/"
            # TensorBoard prints messages and an address of its own before it answers.
            if has_started(server, address):
                print(f"Perf Advisor: {address}#perf_advisor", flush=True)
            return server.wait()
        except KeyboardInterrupt:
            return 0


if __name__ == "__main__":
    sys.exit(main())
