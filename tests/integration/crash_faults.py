"""What can go wrong in a run, set up from outside: a step at which the process dies or a call fails.

Each function patches the process that it is called in, which is a child of :mod:`crash_server`.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import importlib
import json
import os
import shutil
import signal
import sqlite3
import time


def fault(at, do, match="", when="before", nth=1, times=1):
    """Do something at the nth call of a function whose arguments hold a text.

    Args:
        at: ``module:name`` or ``module:Class.method``; ``sql`` is every statement of the journal.
        do: ``kill``, ``term`` or ``int`` for a signal, a name of ``errno`` for an error of the system, ``remove PATH``
            for a folder, ``copy FROM TO`` for a file (its times too), ``append PATH``, ``raise NAME`` for a built-in
            exception, ``full`` for what SQLite says on a full disk.
        match: Part of what the call's arguments look like.
        when: ``before`` or ``after`` the call.
        nth: Counted from 1 among the matching calls.
        times: For how many calls from there on.
    """
    seen = [0]

    def around(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            hit = match in " ".join(map(str, (*args, *kwargs.values())))
            seen[0] += hit
            due = hit and nth <= seen[0] < nth + times
            if due and when == "before":
                act(do)
            result = function(*args, **kwargs)
            if due and when == "after":
                act(do)
            return result

        return call

    if at == "sql":
        _patch_sql(around)
        return
    module, _, path = at.partition(":")
    owner = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    setattr(owner, name, around(getattr(owner, name)))


def _patch_sql(around):
    class Connection(sqlite3.Connection):
        execute = around(sqlite3.Connection.execute)
        executemany = around(sqlite3.Connection.executemany)

    sqlite3.connect = functools.partial(sqlite3.connect, factory=Connection)


def act(do):
    kind, _, rest = do.partition(" ")
    if kind in ("kill", "term", "int"):
        os.kill(os.getpid(), getattr(signal, f"SIG{kind.upper()}"))
        time.sleep(0)  # a signal that raises does so here
    elif kind == "remove":
        shutil.rmtree(rest)
    elif kind == "copy":
        shutil.copy2(*rest.split(" "))
    elif kind == "append":
        with open(rest, "ab") as file:
            file.write(b"more")
    elif kind == "full":
        raise sqlite3.OperationalError("database or disk is full")
    elif kind == "raise":
        raise getattr(__import__("builtins"), rest)("made to fail")
    else:
        raise OSError(getattr(errno, kind), os.strerror(getattr(errno, kind)))


def log_encodes(path):
    """Write a line for every batch that an encoder is given: its name and the first value of each item."""
    from genmeter_fakes.encoders import _Fake

    encode = _Fake.encode

    def logged(self, batch):
        marks = [float(self.values(item)[0, 0]) for item in batch]
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([self.name, marks]) + "\n")
        return encode(self, batch)

    _Fake.encode = logged


def lethal(encode=(), decode=()):
    """Let some grey values take the process down when they are encoded, or when they are decoded."""
    from genmeter_fakes.encoders import PixelEncoder

    def watch(name, levels):
        right = getattr(PixelEncoder, name)

        def call(self, first, *more):
            seen = [item.arrays[0] for item in first] if name == "encode" else [first.pixels]
            if {int(array.reshape(-1)[0]) for array in seen} & set(levels):
                act("kill")
            return right(self, first, *more)

        setattr(PixelEncoder, name, call)

    watch("encode", encode)
    watch("prepare", decode)


def neighbours_count():
    """Let every feature depend on its batch a little, as a real network's last bits do."""
    from genmeter_fakes.encoders import _Fake

    encode = _Fake.encode

    def mixed(self, batch):
        features = encode(self, batch)
        shift = sum(float(feature.values.sum()) for feature in features) / 1000
        return [feature._replace(values=feature.values + shift) for feature in features]

    _Fake.encode = mixed


def small_windows(lines):
    """Make the windows of a run so small that a short input has several."""
    from genmeter.engine import run

    run._WINDOW_LINES = lines


def small_files(size):
    """No file may grow above this many bytes, which is what a full disk looks like to the writer."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def ordinary_user():
    """Obey the modes of files even as root, who may else write everywhere; the files stay root's own."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
        assert libc.capget(header, sets) == 0
        sets[0] &= ~0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
        assert libc.capset(header, sets) == 0


def clock(offsets):
    """Let each look at the clock see it jump by the next of these seconds, over and over."""
    now, looks = time.time, [0]

    def jumping():
        looks[0] += 1
        return now() + offsets[looks[0] % len(offsets)]

    time.time = jumping
