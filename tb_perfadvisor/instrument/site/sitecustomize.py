"""Python imports this when it starts, because `perfadvisor run` put this directory on its path."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def _hidden() -> None:
    """Run the environment's own `sitecustomize`, which this one hides."""
    here = str(Path(__file__).resolve().parent)
    others = [entry for entry in sys.path if os.path.realpath(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _install() -> None:
    try:
        from tb_perfadvisor.instrument.hook import install
    except ImportError:  # the program runs in another environment
        settings = json.loads(os.environ.get("PERFADVISOR_RUN") or "{}")
        if "status" in settings:
            said = {"problem": f"{sys.executable} has no tb_perfadvisor: install it there"}
            path = Path(settings["status"], f"{os.getpid()}.json")
            path.write_text(json.dumps(said), encoding="utf-8")
    else:
        install()


_hidden()
_install()
