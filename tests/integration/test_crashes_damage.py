"""What is torn, lost, full, locked or changed under a run costs time at most, and is said in plain words."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal

import numpy as np
import pytest
from crash_runs import Case, codes, contents, fault, items, scores, strays
from crash_server import wait_until
from PIL import Image

HALFWAY = fault("genmeter_fakes.encoders:_Fake.encode", "term", nth=16)


@pytest.fixture(scope="module")
def case(crash_server, crash_data, tmp_path_factory):
    """40 samples in windows of 8 lines; ``stopped`` is a run that was told to end, ``killed`` one that was killed."""
    data, folder = crash_data(40), tmp_path_factory.mktemp("damage")
    made = Case(crash_server, data, folder, faults=[("small_windows", {"lines": 8})])
    assert made.start("stopped", faults=[HALFWAY]).code == 130
    kill = fault("genmeter_fakes.encoders:_Fake.encode", "kill", nth=16)
    assert made.start("killed", faults=[kill]).code == -signal.SIGKILL
    assert (made.run("killed") / "journal.sqlite-wal").stat().st_size > 50_000
    assert len(list(made.run("stopped").glob("features/*/*.safetensors"))) > 2
    return made


# Damage: what it is, where (a share of the size, or bytes when above 1), and how many bytes.


def damage(path, kind, at, seed=0):
    data = bytearray(path.read_bytes())
    place = int(at if at > 1 else at * len(data))
    if kind == "cut":
        del data[place:]
    elif kind == "garbage":
        data[place : place + 64] = random.Random(seed).randbytes(64)
    elif kind == "zeros":
        data[place : place + 4096] = bytes(min(4096, len(data) - place))
    elif kind == "flip":
        data[place] ^= 1 << seed % 8
    elif kind == "page":
        data[:] = b"<!DOCTYPE html><html><body>Sign in to go on</body></html>"
    path.write_bytes(data)


JOURNAL = [
    *(("cut", at) for at in (0, 0.5, 10, 100, 4096, 0.3, 0.7, 0.99)),
    *(("garbage", at) for at in (0, 20, 110, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.99)),
    *(("zeros", at) for at in (0, 4096, 8192, 16384, 32768)),
    ("page", 0),
]


def often(cases, every):
    """One case of so many at once, the others with the slow tests."""
    return [case if i % every == 0 else pytest.param(*case, marks=pytest.mark.slow) for i, case in enumerate(cases)]


@pytest.mark.parametrize(
    ("name", "kind", "at"),
    [*(("stopped", *case) for case in JOURNAL), *often([("whole", *case) for case in JOURNAL], 4)],
)
def test_a_damaged_journal_is_refused_or_does_no_harm(case, name, kind, at):
    run = case.copy(name, f"journal-{name}-{kind}-{at}")
    damage(run / "journal.sqlite", kind, at)
    child = case.start(run.parent.name)
    if child.code == 2:
        assert "journal.sqlite: is damaged or no journal" in child.stderr
        assert "score again with --fresh or move the directory away" in child.stderr
        assert "Traceback" not in child.stderr
        case.finish(run.parent.name, "--fresh")
    else:
        assert child.code == 0, child.stderr
        case.same(run.parent.name)


@pytest.mark.parametrize(("kind", "at"), [("cut", 0.5), ("cut", 0), ("garbage", 0), ("garbage", 0.5), ("gone", 0)])
def test_a_torn_log_of_the_journal_costs_what_it_held(case, kind, at):
    run = case.copy("killed", f"wal-{kind}-{at}")
    wal = run / "journal.sqlite-wal"
    wal.unlink() if kind == "gone" else damage(wal, kind, at)
    child = case.start(run.parent.name)
    assert child.code == 0, child.stderr
    case.same(run.parent.name)


SHARDS = [("cut", 0.5), ("cut", 0), ("cut", 0.95), ("page", 0), ("gone", 0), ("garbage", 0.6), ("folder", 0)]
FLIPS = [("flip", round(at, 3)) for at in np.linspace(0.01, 0.99, 12)]


def spoil(folder, kind, at):
    """Damage every shard in a folder; returns how many there were."""
    shards = sorted(folder.rglob("*.safetensors"))
    for number, shard in enumerate(shards):
        if kind in ("gone", "folder"):
            shard.unlink()
            if kind == "folder":
                shard.mkdir()
        else:
            damage(shard, kind, at, number)
    return len(shards)


@pytest.mark.parametrize(
    ("name", "kind", "at"), often([(n, *case) for case in SHARDS + FLIPS for n in ("stopped", "whole")], 3)
)
def test_damaged_features_of_a_run_are_encoded_again(case, name, kind, at):
    run = case.copy(name, f"shards-{name}-{kind}-{at}")
    assert spoil(run / "features", kind, at) > 2
    case.finish(run.parent.name)


@pytest.mark.parametrize(("kind", "at"), often(SHARDS + FLIPS[::3], 2))
def test_damaged_features_of_the_shared_cache_are_encoded_again(case, tmp_path, kind, at):
    env = {"GENMETER_CACHE": tmp_path / "cache"}
    name = f"cached-{kind}-{at}"
    case.finish(name, env=env, cache=True)
    assert spoil(tmp_path / "cache", kind, at) > 2
    case.finish(f"{name}-again", env=env, cache=True)
    case.finish(name, env=env, cache=True)


WRITES = ["samples.jsonl", "run.json", "summary.json", ".safetensors"]


@pytest.mark.parametrize("what", ["ENOSPC", "EROFS", "EIO"])
@pytest.mark.parametrize("name", WRITES)
def test_a_file_that_cannot_be_written_is_named(case, name, what):
    folder = f"{what}{name}"
    says = [name, os.strerror(getattr(__import__("errno"), what)), "run the same command to go on"]
    says += {"ENOSPC": ["make room there"], "EROFS": ["make it writable"]}.get(what, [])
    case.refused(folder, code=3, says=says, faults=[fault("os:replace", what, name)])
    assert not any(path.name.endswith(".tmp") for path in case.run(folder).rglob("*"))
    case.finish(folder)


@pytest.mark.parametrize("nth", [1, 9, 30, 50])
def test_a_full_disk_under_the_journal(case, nth):
    folder = f"journal-full-{nth}"
    says = ["journal.sqlite", "full", *(["make room there", "run the same command to go on"] if nth > 1 else ["-o"])]
    case.refused(folder, code=3 if nth > 1 else 2, says=says, faults=[fault("sql", "full", "COMMIT", nth=nth)])
    case.finish(folder)


@pytest.mark.parametrize("size", [2_000, 60_000, 80_000, 100_000])
def test_a_disk_that_fills_up(case, size):
    case.refused(f"disk-{size}", code=2 if size == 2_000 else 3, faults=[("small_files", {"size": size})])
    case.finish(f"disk-{size}")


@pytest.mark.parametrize("name", ["new", "stopped", "whole"])
def test_a_directory_that_must_not_be_written(case, name):
    run = case.copy(name, f"locked-{name}") if name != "new" else case.folder / "locked-new/run"
    run.mkdir(parents=True, exist_ok=True)
    places = [run, *run.rglob("*")]
    for path in places:
        path.chmod(0o555 if path.is_dir() else 0o444)
    case.refused(run.parent.name, says=["journal.sqlite", "-o"], faults=[("ordinary_user", {})])
    for path in places:
        path.chmod(0o755 if path.is_dir() else 0o644)
    case.finish(run.parent.name)


def test_a_place_where_no_directory_can_be_made(case):
    (case.folder / "file").mkdir()
    case.run("file").write_text("in the way")
    case.refused("file", says=["run: ", "-o"])


def test_a_cache_that_must_not_be_written_costs_nothing(case, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o555)
    case.finish("locked-cache", cache=True, env={"GENMETER_CACHE": tmp_path / "cache"}, faults=[("ordinary_user", {})])
    (tmp_path / "file").write_text("in the way")
    case.finish("no-cache-folder", cache=True, env={"GENMETER_CACHE": tmp_path / "file"})


@pytest.mark.parametrize("nth", [1, 4])
def test_a_cache_removed_under_a_run(case, tmp_path, nth):
    cache = tmp_path / "cache"
    cache.mkdir()
    gone = fault("os:replace", f"remove {cache}", ".safetensors", "after", nth)
    case.finish(f"cache-gone-{nth}", cache=True, env={"GENMETER_CACHE": cache}, faults=[gone])


@pytest.mark.parametrize(
    "at", [("genmeter_fakes.encoders:_Fake.encode", "", 9), ("os:replace", ".safetensors", 3), ("sql", "INTO line", 2)]
)
def test_a_run_directory_removed_under_a_run(case, at):
    call, match, nth = at
    name = f"gone-{call.partition(':')[0]}"
    says = ["the run directory was removed or replaced", "run the same command"]
    case.refused(name, code=3, says=says, faults=[fault(call, f"remove {case.run(name)}", match, "after", nth)])
    shutil.rmtree(case.run(name), ignore_errors=True)
    case.finish(name)


@pytest.mark.parametrize("name", ["samples.jsonl", "run.json", "summary.json"])
@pytest.mark.parametrize("share", [0, 0.5, 0.999])
def test_results_half_written_by_somebody_else(case, crash_server, name, share):
    run = case.copy("whole", f"half-{name}-{share}")
    data = (run / name).read_bytes().replace(b"s1", "名".encode())
    (run / name).write_bytes(data[: int(share * len(data))])
    for command in ("summary", "report"):
        child = crash_server.run(command, run)
        assert child.code in (0, 2), child.stderr
        assert child.code == 0 or name in child.stderr
        assert "Traceback" not in child.stderr
    (run / "report.html").unlink(missing_ok=True)
    case.finish(run.parent.name)
    run = case.copy("stopped", f"half-stopped-{name}-{share}")
    (run / name).write_bytes(data[: int(share * len(data))])
    case.finish(run.parent.name)


@pytest.mark.parametrize("words", [(), ("--fresh",)])
def test_a_second_run_on_a_directory_is_refused_and_the_first_is_unharmed(case, words):
    name = f"two{''.join(words)}"
    first = case.start(name, env={"GENMETER_FAKE_DELAY": "0.1"})
    log = case.run(name) / "journal.sqlite-wal"
    assert wait_until(lambda: log.exists() and log.stat().st_size > 50_000, first)
    case.refused(name, *words, says=["another genmeter process is running on this directory", "-o"])
    assert first.code == 0, first.stderr
    case.same(name)


@pytest.mark.parametrize("offsets", [[0, -3600], [0, 10**8], [-(10**8), 10**8, 0], [-(10**9)]])
def test_a_clock_that_jumps(case, offsets):
    name = f"clock-{len(offsets)}-{offsets[-1]}"
    faults = [("clock", {"offsets": offsets})]
    assert case.start(name, faults=[HALFWAY, *faults]).code == 130
    case.finish(name, faults=[("clock", {"offsets": [-o for o in offsets]})])
    case.finish(name, faults=faults)
    seconds = json.loads((case.run(name) / "run.json").read_bytes())["seconds"]
    assert all(value >= 0 for value in seconds.values())


# Files that change.


@pytest.fixture
def own(case, crash_server, tmp_path):
    """A copy of the case's input whose files may be changed, and the runs of it."""
    shutil.copytree(case.data.parent, tmp_path / "data")

    class Own:
        data, root = tmp_path / "data/samples.jsonl", tmp_path / "data"
        again = 0

        def start(self, **options):
            child = case.start(str(tmp_path / "own"), data=self.data, **options)
            assert child.code is not None
            assert "Traceback" not in child.stderr
            return child

        def fresh_results(self):
            self.again += 1
            assert case.start(str(tmp_path / f"fresh-{self.again}"), data=self.data).code == 0
            return contents(tmp_path / f"fresh-{self.again}/run")

        run, log = tmp_path / "own/run", tmp_path / "log"

    return Own()


def grey(path, level):
    Image.fromarray(np.full((16, 16, 3), level, np.uint8)).save(path)


@pytest.mark.parametrize("stop", [None, HALFWAY, fault("genmeter_fakes.encoders:_Fake.encode", "kill", nth=16)])
def test_a_file_changed_between_two_processes_is_scored_again(own, stop):
    own.start(faults=[stop] if stop else [])
    for name in ("out/0.png", "out/18.png", "out/20.png"):  # of a finished window, and of the one that was begun
        grey(own.root / name, 7)
    done = own.start(log=own.log)
    assert done.code == 0, done.stderr
    assert "changed since it was scored" in done.stderr
    assert [scores(own.run, "fake_level")[i] for i in (0, 1, 18, 20)] == [7, 102, 7, 7]
    assert contents(own.run) == own.fresh_results()


def test_a_file_that_was_only_touched_is_not_scored_again(own):
    own.start()
    for number, path in enumerate(sorted(own.root.glob("out/*.png"))):
        os.utime(path, ns=(0, [-(2**31), 2**33, 0, 10**9 * 2**33][number % 4] + number))
    assert own.start(log=own.log).code == 0
    assert items(own.log) == 0
    assert own.start(log=own.log).code == 0
    assert contents(own.run) == own.fresh_results()


def test_a_file_replaced_during_a_run_costs_the_later_reader(own):
    """A reference that other samples were scored against already: theirs stand, and the next process evens it out."""
    other = own.root.parent / "other.png"
    grey(other, 55)
    swap = fault("os:open", f"copy {other} {own.root / 'a.png'}", "/out/4.png")
    assert own.start(faults=[swap]).code == 0
    found = codes(own.run, "fake_pair")
    assert set(found.values()) == {"changed_during_run"}
    assert 4 in found
    assert all(i % 2 == 0 and i < 8 for i in found), "only readers of that file, in the window in which it changed"
    assert scores(own.run, "fake_pair")[1::2] == [91.0 + i for i in range(1, 40, 2)]
    done = own.start()
    assert "a.png changed since it was scored" in done.stderr
    assert codes(own.run, "fake_pair") == {}
    assert contents(own.run) == own.fresh_results()


@pytest.mark.parametrize("same_look", [False, True])
def test_a_file_written_while_it_is_read(own, same_look):
    target, other = own.root / "out/5.png", own.root.parent / "other.png"
    good = target.read_bytes() + b"behind the end"  # so that its size tells it from the others
    target.write_bytes(good)
    if same_look:  # other bytes, put in place under the same size and time
        other.write_bytes(good[:-40] + bytes(40))
        os.utime(other, ns=(target.stat().st_atime_ns, target.stat().st_mtime_ns))
    do = f"copy {other} {target}" if same_look else f"append {target}"
    done = own.start(faults=[fault("os:read", do, match=f" {len(good) + 1}")])
    assert done.code == 0, done.stderr
    assert codes(own.run, "fake_level")[5] == "changed_during_run"
    rows_ = [row for i, row in enumerate(scores(own.run, "fake_level")) if i != 5]
    assert rows_ == [101.0 + i for i in range(40) if i != 5], "its neighbours are kept"
    target.write_bytes(good)
    assert own.start().code == 0
    assert contents(own.run) == own.fresh_results()


@pytest.mark.parametrize("before", [b"", b"\x89PNG\r\n\x1a\n"])
def test_a_file_that_was_not_finished_is_scored_when_it_is(own, before):
    target = own.root / "out/5.png"
    good = target.read_bytes()
    target.write_bytes(before)
    own.start()
    assert list(codes(own.run, "fake_level")) == [5]
    target.write_bytes(good)
    assert own.start().code == 0
    assert contents(own.run) == own.fresh_results()


@pytest.mark.parametrize("change", ["removed", "added", "swapped", "edited"])
@pytest.mark.parametrize("stop", [None, HALFWAY])
def test_lines_that_change_between_two_processes_are_refused(own, change, stop):
    own.start(faults=[stop] if stop else [])
    lines = own.data.read_text().splitlines(keepends=True)
    changed = {
        "removed": lines[:-1],
        "added": [*lines, lines[0].replace("s0", "s99")],
        "swapped": lines[::-1],
        "edited": [lines[0].replace('"p"', '"q"'), *lines[1:]],
    }
    own.data.write_text("".join(changed[change]))
    refused = own.start()
    assert refused.code == 2
    assert "the input's content" in refused.stderr
    assert "--fresh" in refused.stderr


def test_an_id_that_comes_twice_keeps_its_rows_apart(own):
    lines = [json.loads(line) for line in own.data.read_text().splitlines()]
    own.data.write_text("".join(json.dumps({**line, "id": "same"}) + "\n" for line in lines))
    assert own.start(faults=[HALFWAY]).code == 130
    assert own.start().code == 0
    assert scores(own.run, "fake_level") == [101.0 + i for i in range(40)]
    assert strays(own.run) == []


def test_file_names_and_metrics_that_are_no_unicode(case, crash_server, tmp_path):
    """Names of files may be any bytes, and JSON can hold halves of characters: neither stops a run."""
    shutil.copy(case.data.parent / "out/0.png", tmp_path / "a.png")
    os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/\xff.png")
    grey(tmp_path / "b.png", 3)
    lines = [{"id": "\ud800", "output": "\udcff.png"}, {"id": "b", "output": "b.png"}]
    lines[1]["eval_config"] = {"metrics": ["\ud800", "fake_level"]}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for metrics in ("fake_level", None):
        words = ["score", tmp_path / "in.jsonl", "-o", tmp_path / f"run-{metrics}", "--no-cache"]
        for level in (101, 7):
            grey(tmp_path / "c.png", level)
            os.rename(tmp_path / "c.png", os.fsencode(tmp_path) + b"/\xff.png")
            done = crash_server.run(*words, *(["--metrics", metrics] if metrics else []))
            assert done.code == 0, done.stderr
            if metrics:
                assert scores(tmp_path / f"run-{metrics}", metrics) == [level, 3]
