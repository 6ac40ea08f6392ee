"""Building a network without drawing the random values that its weights are about to replace."""

from __future__ import annotations

from typing import Any

from torch.overrides import TorchFunctionMode

_FILLS = frozenset({"normal_", "uniform_", "trunc_normal_", "erfinv_", "kaiming_uniform_", "xavier_uniform_"})


class _WithoutRandomValues(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _FILLS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def without_random_values() -> TorchFunctionMode:
    """A context, for this thread alone, in which in-place random fills do nothing.

    Memory of a parameter is then never touched before its weights are copied in. Constants (masks, positions) get their
    values as always.
    """
    return _WithoutRandomValues()
