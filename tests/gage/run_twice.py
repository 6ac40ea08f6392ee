"""Runs configurations one after another in one process, as a script: ``run_twice.py CHECKOUT OUT CONFIG...``.

Prints one JSON line: the exit status of each, and what the plug-in's engines did.
"""

from __future__ import annotations

import json
import os
import runpy
import sys


def main() -> None:
    checkout, out, *configs = sys.argv[1:]
    os.chdir(checkout)
    sys.path.insert(0, checkout)
    statuses = []
    for number, config in enumerate(configs):
        sys.argv = ["run.py", "--config", config, "--output-dir", out, "--run-id", f"run{number}", "--gpus", "0"]
        try:
            runpy.run_path("run.py", run_name="__main__")
            statuses.append(0)
        except SystemExit as end:
            statuses.append(end.code or 0)
    from genmeter.integrations.gage.engines import engines

    print("\n" + json.dumps({"statuses": statuses, "stats": [engine.stats() for engine in engines()]}))


if __name__ == "__main__":
    main()
