"""One input, its unbroken run, and broken runs of it that must come to the same."""

from __future__ import annotations

import json
import shutil

BATCH = 4
METRICS = "fake_level,fake_pair,fake_gap"
WHOLE = ("samples.jsonl", "summary.json", "run.json")


def contents(run):
    """The results of a run as bytes, less what says when, and in which process, they were made."""
    found = {name: (run / name).read_bytes() for name in WHOLE}
    record = json.loads(found["run.json"])
    for key in ("created", "seconds", "command"):
        del record[key]
    del record["counts"]["encoded"]  # by the last process
    record["config"].pop("cache", None)
    return {**found, "run.json": json.dumps(record).encode()}


def strays(run):
    """Files in the directory of a finished run that nobody will ever read."""
    expected = {"journal.sqlite", "journal.sqlite-wal", "report.html", *WHOLE}
    files = [path.relative_to(run) for path in run.rglob("*") if path.is_file()]
    shards = [path for path in files if path.parts[0] == "features" and path.match("features/*/*.safetensors")]
    return sorted(str(path) for path in set(files) - set(shards) if str(path) not in expected)


def encodes(log):
    """(encoder, first values) of each batch that was begun."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("]")]


def items(log):
    return sum(len(marks) for _, marks in encodes(log))


def rows(run, metric):
    lines = (run / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["eval_result"]["metrics"][metric] for line in lines]


def scores(run, metric):
    return [row["score"] for row in rows(run, metric)]


def codes(run, metric):
    """Error code of each line that has no score."""
    return {i: row["error"]["code"] for i, row in enumerate(rows(run, metric)) if row["score"] is None}


class Case:
    """Runs of one input. ``more`` are further words of the command, ``faults`` stand in every run."""

    def __init__(self, server, data, folder, *, more=("--no-report",), faults=()):
        self.server, self.data, self.folder, self.more, self.faults = server, data, folder, more, list(faults)
        done = self.start("whole", log=folder / "whole.log")
        assert done.code == 0, done.stderr
        self.want, self.items = contents(self.run("whole")), items(folder / "whole.log")

    def run(self, name):
        """The run directory of a name."""
        return self.folder / name / "run"

    def start(self, name, *words, faults=(), log=None, metrics=METRICS, data=None, cache=False, **options):
        """Begin a run, or go on with it."""
        self.run(name).parent.mkdir(exist_ok=True)
        logged = [("log_encodes", {"path": str(log)})] if log else []
        line = ("score", data or self.data, "-o", "run", "--metrics", metrics, "--batch-size", BATCH)
        line += (*self.more, *(() if cache else ("--no-cache",)))
        faults = [*self.faults, *logged, *faults]
        return self.server.start(*line, *words, cwd=self.run(name).parent, faults=faults, **options)

    def finish(self, name, *words, **options):
        """Go on to the end, which must come; the result must be that of the unbroken run."""
        done = self.start(name, *words, **options)
        assert done.code == 0, done.stderr
        self.same(name)
        assert strays(self.run(name)) == []
        return done

    def same(self, name):
        """The results are those of the unbroken run, to the byte."""
        found = contents(self.run(name))
        for file in found:
            assert found[file].splitlines() == self.want[file].splitlines(), file
        assert found == self.want

    def refused(self, name, *words, code=2, says=(), **options):
        """A run that must end with a code and a message in plain words."""
        child = self.start(name, *words, **options)
        assert child.code == code, child.stderr
        assert "Traceback" not in child.stderr
        for part in says:
            assert part in child.stderr
        return child

    def copy(self, name, new):
        """Take an earlier run as it lies there for the start of another."""
        shutil.copytree(self.folder / name, self.folder / new)
        return self.run(new)


def fault(at, do, match="", when="before", nth=1, times=1):
    """See :func:`crash_faults.fault`."""
    return "fault", {"at": at, "do": do, "match": match, "when": when, "nth": nth, "times": times}
