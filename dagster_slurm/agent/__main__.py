"""Entry point, both as ``python <directory>`` and as ``python -m dagster_slurm.agent``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

PACKAGE = "dagster_slurm_agent"


def load_package() -> str:
    """Name under which the modules beside this file can be imported.

    Run as a directory there is no package, and ``sys.path`` starts with the directory itself; a fixed name is
    registered instead, so that no module here can hide one of the standard library or ray.
    """
    if __package__:
        return __package__
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {here} as a package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)
    return PACKAGE


if __name__ == "__main__":
    sys.exit(importlib.import_module(load_package() + ".commands").main(sys.argv[1:]))
