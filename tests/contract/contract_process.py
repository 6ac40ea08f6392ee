"""Runs jobs in processes of their own, as a script: each job is one run, and may be told to die in the middle.

Called with a JSON file of jobs; torch is imported once and every job is a fork of that. Prints one JSON list with the
status of each job: 0, or minus the signal that ended it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    import torch

    # Threads of a network are not there yet, so that a fork is as good as a fresh process.
    torch.set_num_threads(1)
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps([_fork(job) for job in jobs]))


def _fork(job: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _run(job)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(job: dict[str, Any]) -> None:
    import genmeter

    os.environ["GENMETER_CACHE"] = job["store"]
    os.environ.update(job.get("env", {}))
    if job["die_after"] is not None:
        _die_after(job["die_after"], job["metrics"], job["settings"]["profile"])
    genmeter.score(job["path"], job["metrics"], out=job["out"], **job["settings"])


def _die_after(items: int, metrics: list[str], profile: str) -> None:
    """Kill this process as soon as so many items have been encoded and another batch begins."""
    from genmeter.encoders.registry import create_encoder
    from genmeter.engine.catalog import weightless
    from genmeter.registry import parse_variant
    from genmeter.weights.lock import get_entry

    classes = set()
    for metric in metrics:
        variant = parse_variant(metric, profile=profile)
        for need in variant.needs:
            if need.encoder is not None:
                model = variant.models.get(need.name)
                entry = weightless(need.encoder) if model is None else get_entry(model)
                classes.add(type(create_encoder(need.encoder, entry, Path)))
    done = 0

    def counted(encode: Any) -> Any:
        def call(self: Any, batch: Any) -> Any:
            nonlocal done
            if done >= items:
                os.kill(os.getpid(), signal.SIGKILL)
            done += len(batch)
            return encode(self, batch)

        return call

    for owner in {next(c for c in cls.__mro__ if "encode" in vars(c)) for cls in classes}:
        owner.encode = counted(owner.encode)


if __name__ == "__main__":
    main()
