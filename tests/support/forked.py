"""A process that has imported a framework, and runs each program in a copy of itself.

python -m tests.support.forked MODULE...

It reads programs as JSON, one a line, and answers each with its exit status. PyTorch takes three
seconds to import with its compiler, which each optimizer needs, and TensorFlow takes four. A copy
of the process, made by `fork`, has them at once, and nothing of the programs before it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import warnings
from importlib import import_module
from types import ModuleType

TIMEOUT_S = 300


def main() -> None:
    """Serve until the input ends."""
    for module in sys.argv[1:]:
        import_module(module)
    # JAX warns of threads that copies lack, but starts them with its first computation.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
    # Elsewhere, system libraries do not expect copies.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    for line in sys.stdin:
        copy = context.Process(target=execute, kwargs=json.loads(line))
        copy.start()
        copy.join()
        print(copy.exitcode, flush=True)


def execute(
    script: str, arguments: list[str], folder: str, environment: dict[str, str], outputs: list[str]
) -> None:
    """Run a script as `python -c` does in the folder, with files for both outputs."""
    signal.alarm(TIMEOUT_S)
    for number, path in enumerate(outputs, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = ""
    sys.argv = ["-c", *arguments]
    program = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(script, "<string>", "exec"), vars(program))


if __name__ == "__main__":
    main()
