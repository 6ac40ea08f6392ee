"""What people see: 80 columns, colour only where it is wanted, progress that can be followed, nothing raw in a pipe."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import unicodedata

import pytest

pty = pytest.importorskip("pty")

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def in_terminal(words, env, columns=80, stdout=True):
    """Run a command with its errors, and by default its output, on a terminal. Returns status and all that it wrote."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "genmeter.cli.main", *map(str, words)]
    process = subprocess.Popen(
        command, stdin=slave, stderr=slave, stdout=slave if stdout else subprocess.DEVNULL, env=env, close_fds=True
    )
    os.close(slave)
    parts = []
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(master)
    return process.wait(timeout=60), b"".join(parts).decode()


def shown(text):
    """The lines as they stand on the screen, also those that were drawn over, without codes."""
    return [line for line in re.split(r"[\r\n]+", ESCAPE.sub("", text)) if line.strip()]


def width(line):
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


@pytest.fixture
def terminal(command_env, tmp_path):
    """``terminal(words, TERM=...)``: a command in an 80-column terminal of that kind."""
    from pathlib import Path

    base = {**command_env, "GENMETER_CACHE": str(tmp_path / "cache")}
    base["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent / "fakes")
    for name in ("COLUMNS", "NO_COLOR", "TERM"):
        base.pop(name, None)

    def run(*words, columns=80, stdout=True, **env):
        return in_terminal(words, {**base, "TERM": "xterm-256color", **env}, columns, stdout)

    return run


@pytest.fixture
def mixed(grey_set):
    """Samples of which some have no score, with tags, and names that are long."""
    path = grey_set([10, 20, 30, 40, 50, 60])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for index, line in enumerate(lines):
        line["data_tag"] = {"style": ("photo", "drawing")[index % 2]}
        line["id"] = f"a-rather-long-identifier-of-a-sample-that-somebody-made-up-{index}"
    (path.parent / "out/2.png").write_bytes(b"no image")
    lines[4]["output"] = "out/" + "deep/" * 12 + "missing.png"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


SCORED = ("--metrics", "fake_level,fake_pair", "--no-report", "--no-cache")


def test_a_run_in_a_terminal(terminal, mixed, tmp_path):
    status, text = terminal("score", mixed, "-o", tmp_path / "run", *SCORED)
    assert status == 0
    lines = shown(text)
    assert any("scoring" in line and "6 of 6" in line and "scores failed" in line for line in lines), "a bar"
    assert COLOUR.search(text)
    wide = [line for line in lines if width(line) > 80 and not re.search(r"genmeter:fake|run/samples\.jsonl", line)]
    assert wide == [], "signatures and paths alone are never broken"


def test_no_colour_where_it_is_not_wanted(terminal, mixed, tmp_path):
    status, text = terminal("score", mixed, "-o", tmp_path / "run", *SCORED, NO_COLOR="1")
    assert status == 0
    assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|4[0-9]|38;|9[0-7])[0-9;]*m", text)
    assert any("6 of 6" in line for line in shown(text))


def test_a_terminal_that_draws_nothing_over(terminal, mixed, tmp_path):
    status, text = terminal("score", mixed, "-o", tmp_path / "run", *SCORED, TERM="dumb")
    assert status == 0
    assert "\x1b" not in text
    assert max(width(line) for line in shown(text) if "genmeter:fake" not in line and "run/" not in line) <= 80
    assert "fake_level" in text


def test_a_bar_of_large_numbers_fits(monkeypatch):
    import io

    from genmeter.cli.progress import Console
    from genmeter.engine.run import Progress

    class Screen(io.StringIO):
        def isatty(self):
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm"), ("LINES", "50")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    with Console() as console:
        console.started(1_234_567, 400_000)
        console.progress(Progress(1, 1_234_567, 1, 0))
        console.progress(Progress(987_654, 1_234_567, 900_000, 123_456))
        console._bars.refresh()
    lines = shown(screen.getvalue())
    assert any("987,654 of 1,234,567, 123,456 scores failed" in line for line in lines)
    assert max(map(width, lines)) <= 80


def test_nothing_raw_in_a_pipe(genmeter_command, mixed, tmp_path):
    out = tmp_path / "run"
    for words in (
        ("score", mixed, "-o", out, *SCORED),
        ("score", mixed, "--plan", *SCORED[:2]),
        ("summary", out),
        ("metrics",),
        ("models", "list"),
        ("--help",),
        ("score", "--help"),
    ):
        done = genmeter_command(*words, extra={"TERM": "xterm-256color", "COLUMNS": "80", "NO_COLOR": ""})
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout + done.stderr, words
        lines = [line for line in done.stdout.splitlines() if "genmeter:fake" not in line and str(out) not in line]
        assert max(map(width, lines)) <= 80, words


def test_lists_fit_a_terminal(terminal):
    for words in (("metrics",), ("models", "list"), ("--help",), ("score", "--help"), ("metrics", "fake_level")):
        status, text = terminal(*words)
        assert status == 0
        assert max(map(width, shown(text))) <= 80, words
    _, text = terminal("models", "list")
    from genmeter.weights.lock import load_lock

    assert all(f"{name} " in text for name in load_lock()), "an id is there to be copied"


def test_several_runs_of_one_input_are_told_apart(genmeter_command, mixed, tmp_path):
    for name in ("one", "two"):
        assert genmeter_command("score", mixed, "-o", name, *SCORED, cwd=tmp_path).returncode == 0
    done = genmeter_command("summary", "one", "two", cwd=tmp_path)
    rows = [line for line in done.stdout.splitlines() if re.search(r"fake_level +mean +higher", line)]
    assert [row.split()[0] for row in rows] == ["one", "two"]


def test_groups_that_only_repeat_the_whole_are_left_out(genmeter_command, mixed, tmp_path):
    done = genmeter_command("score", mixed, "-o", tmp_path / "run", *SCORED)
    assert "photo" in done.stdout
    assert "data_tag.style" in done.stdout
    heads = [line.split()[0] for line in done.stdout.splitlines() if "Mean" in line]
    assert "task_type" not in heads
