"""Where the networks run, and the global torch settings that exact numbers need."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from genmeter.contract import Precision
from genmeter.errors import GenmeterError

_TORCH_FLAGS = threading.RLock()


@functools.cache
def cuda_driver_devices() -> int:
    """How many devices the CUDA driver sees, asked of the driver itself so that torch need not be imported."""
    for name in ("libcuda.so.1", "libcuda.so", "nvcuda.dll"):
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_int(0)
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            return count.value
        return 0
    return 0


def resolve_device(wanted: str) -> str:
    """``auto``, ``cpu``, ``cuda`` or ``cuda:i`` to the device that will be used.

    Args:
        wanted: ``auto`` takes a CUDA device when the driver and torch both offer one, else the CPU.

    Returns:
        ``cpu`` or ``cuda:i``.

    Raises:
        ValueError: Unknown name, or a CUDA device that is not there. Nothing falls back in silence.
    """
    if wanted == "cpu":
        return "cpu"
    if wanted == "auto":
        return "cuda:0" if cuda_driver_devices() > 0 and _torch_devices() > 0 else "cpu"
    kind, _, index = wanted.partition(":")
    if kind != "cuda" or (index and not index.isdecimal()):
        raise ValueError(f"unknown device {wanted!r}; use auto, cpu, cuda or cuda:0 (one device per process)")
    found = _torch_devices() if cuda_driver_devices() > 0 else 0
    if int(index or 0) >= found:
        raise ValueError(f"device {wanted!r} asked for, but {found} CUDA devices are usable; use --device cpu or auto")
    return f"cuda:{int(index or 0)}"


def _torch_devices() -> int:
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def device_kind(device: str) -> str:
    """``cpu`` or ``cuda``: the part of a device name that numbers may depend on."""
    return device.partition(":")[0]


def memory_budget(device: str) -> int:
    """Bytes one batch may work in: a constant on the CPU, so that the batch plan never depends on the moment."""
    if device_kind(device) == "cpu":
        return 512 << 20
    import torch

    return int(torch.cuda.get_device_properties(device).total_memory) // 2


def available_memory() -> int | None:
    """Bytes the CPU could still hand out now, or None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None


@contextmanager
def torch_settings(precision: Precision, *, needed: bool = True) -> Iterator[None]:
    """Set torch's global state for one piece of work and put the caller's own back.

    Exact mode computes float32 in full (no TF32, no bfloat16 inside of it) and asks cuDNN for deterministic kernels
    without autotuning, since all of these would let a score depend on the machine or on its neighbours. What a program
    around the engine has switched on (autocast, another default dtype or device) stays outside.

    Args:
        precision: ``exact`` or ``fast``.
        needed: Whether the work is torch's. If not, there is nothing to set unless somebody else has imported it.
    """
    if not needed and "torch" not in sys.modules:
        yield
        return
    import torch

    with _TORCH_FLAGS, ExitStack() as stack:
        for owner, name, exact, fast in _switches(torch):
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, exact if precision == "exact" else fast)
        if torch.get_default_dtype() != torch.float32:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float32)
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode())
        yield


def _switches(torch: Any) -> list[tuple[Any, str, Any, Any]]:
    """Global switches of torch: where they are, their name, and their value in exact and in fast mode."""
    backends = torch.backends
    cudnn = backends.cudnn
    switches: list[tuple[Any, str, Any, Any]] = [
        (cudnn, "benchmark", False, True),
        (cudnn, "deterministic", True, False),
    ]
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        # Each operation by itself: torch 2.9 refuses to read the older switches once a newer one has been set.
        gpu = (backends.cuda.matmul, cudnn.conv, cudnn.rnn)
        cpu = (backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn)
        switches += [(node, "fp32_precision", "ieee", "tf32") for node in gpu]
        switches += [(node, "fp32_precision", "ieee", "ieee") for node in cpu]
    else:
        switches += [(_MatmulPrecision(torch), "value", "highest", "high")]
        switches += [(node, "allow_tf32", False, True) for node in (backends.cuda.matmul, cudnn)]
    return switches


class _MatmulPrecision:
    """``torch.set_float32_matmul_precision`` as an attribute."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    @property
    def value(self) -> str:
        return str(self._torch.get_float32_matmul_precision())

    @value.setter
    def value(self, word: str) -> None:
        self._torch.set_float32_matmul_precision(word)


@contextmanager
def own_random_numbers(device: str, *, needed: bool = True) -> Iterator[None]:
    """Leave the caller's random numbers alone: networks are filled with some before their weights are read.

    Args:
        device: Where the work is done.
        needed: As for :func:`torch_settings`.
    """
    if not needed:
        yield
        return
    import torch

    with torch.random.fork_rng(devices=[] if device_kind(device) == "cpu" else [torch.device(device)]):
        yield


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on either kind of device."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


class DeviceLostError(Exception):
    """A device failed in a way that no call in this process survives; a new process may find it well again.

    Attributes:
        device: Its name.
    """

    def __init__(self, device: str, cause: BaseException) -> None:
        first = str(cause).partition("\n")[0]
        super().__init__(f"{device} failed and cannot be used any more in this process ({first})")
        self.device = device


def is_lost(error: BaseException, device: str) -> bool:
    """Whether an exception says that the device itself failed, as CUDA does for every call after a faulty kernel."""
    return device_kind(device) == "cuda" and isinstance(error, RuntimeError) and "CUDA error" in str(error)


def release_cached_memory(device: str) -> None:
    """Hand cached blocks back to the device after an out-of-memory error, so that the smaller retry finds room."""
    if device_kind(device) == "cuda":
        import torch

        with suppress(RuntimeError):  # the retry says it better
            torch.cuda.empty_cache()


def out_of_memory(shape: tuple[int, ...], device: str) -> GenmeterError:
    """The typed error of one item that does not fit alone."""
    size = "x".join(map(str, shape))
    return GenmeterError(
        "out_of_memory",
        f"one item of shape {size} does not fit into the memory of {device}",
        "score it on a machine with more memory, or downscale it",
    )
