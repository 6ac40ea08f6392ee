"""Decoding processes that misbehave."""

from __future__ import annotations

from genmeter.assets.keeper import worker_command

MEMORY = 4_000_000_000


def misbehaving(body: str) -> list[str]:
    """A worker that runs ``body`` for each task, where ``task``, ``parts``, ``count`` and ``real`` are at hand."""
    script = (
        "import os, signal, sys, time\n"
        "from genmeter.assets import worker\n"
        "real = worker._decode\n"
        "count = 0\n"
        "def _decode(task, parts):\n"
        "    global count\n"
        "    count += 1\n" + "".join(f"    {line}\n" for line in body.splitlines()) + "    return real(task, parts)\n"
        "worker._decode = _decode\n"
        "worker.main()\n"
    )
    program, *_, parent, memory = worker_command(MEMORY)
    return [program, "-s", "-c", script, parent, memory]
