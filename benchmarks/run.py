"""Run the benchmarks, print their tables and write results/*.csv with the machine and the versions.

Every comparison is made within one run, in turn, on the same files, weights and threads: a ratio of two runs means
nothing on a machine that does other things too.
"""

from __future__ import annotations

import argparse
import importlib

from common import machine, save, table

BENCHMARKS = (
    "lpips_pairs",
    "clip_images",
    "engine",
    "decode_audio",
    "decode_video",
    "clap_audio",
    "i3d_video",
    "video_memory",
    "frechet",
)


def main() -> None:
    """Command line: names of benchmarks (all by default), ``--rounds``, ``--quick``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=BENCHMARKS, metavar="NAME", help=f"any of {', '.join(BENCHMARKS)}")
    parser.add_argument("--rounds", type=int, default=2, help="timed rounds after one that warms up")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs; writes no results")
    options = parser.parse_args()
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    for name in options.names:
        print(f"\n{name}")
        rows = importlib.import_module(name).run(options.rounds, options.quick)
        table(rows)
        if not options.quick:
            print(f"-> {save(name, rows)}")


if __name__ == "__main__":
    main()
