"""Reading a pickle without running it: arrays, numbers, text and containers, and nothing else.

A pickle is a program for a small stack machine; Python's own machine imports whatever the program names
and calls it. The machine here imports and calls nothing: a name is a word that either stands in a short
table, or ends the reading. Arrays are built here from their shape, dtype and bytes. Memory stays in
proportion to the file: no length, index or shape in it is believed beyond the bytes that are there.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

import numpy as np

from genmeter.errors import GenmeterError

MAX_OPCODES = 300_000
MAX_DEPTH = 32
MAX_VALUES = 200_000
_MAX_LINE = 1 << 20
_SLACK = 1 << 16
_KINDS = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = frozenset(
    {
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    }
)


def refuse(what: str) -> GenmeterError:
    """The error for a file that is not the plain arrays it should be."""
    return GenmeterError(
        "weights_mismatch",
        f"the weights file is refused: {what}; nothing in it was run",
        "if you trust the file, load it where you trust it, save its tensors with safetensors "
        "(safetensors.numpy.save_file) and name that file in a `file` source",
    )


class Name:
    """A name that the pickle mentions: a word, never the thing it names."""

    __slots__ = ("word",)

    def __init__(self, word: str) -> None:
        self.word = word


class Pending:
    """Something a REDUCE began and a BUILD may complete; ``value`` is what it stands for."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: str, value: Any) -> None:
        self.kind = kind
        self.value = value


class _Mark:
    __slots__ = ()


Builder = Callable[["Machine", tuple[Any, ...]], Any]


def read_arrays(stream: BinaryIO) -> Any:
    """The arrays, numbers, text, lists and dicts of a pickle that holds nothing else.

    Args:
        stream: A seekable binary stream at the pickle's start.

    Returns:
        A tree of dict, list, tuple, str, bytes, numbers, None and numpy arrays (native byte order;
        read-only views of the file's bytes).

    Raises:
        GenmeterError: ``weights_mismatch`` when it is damaged, holds anything else, or claims more
            than the file can hold.
    """
    return resolve(Machine(stream, ARRAY_NAMES).run())


class Machine:
    """The stack machine. One use: ``Machine(stream, names).run()``.

    Args:
        stream: Seekable; reading starts where it stands and ends behind the pickle's STOP.
        names: Name to builder; a name that is not here ends the reading. ``None`` as a builder means
            that the name may be mentioned (as an argument) but not called.
        persistent: Turns a persistent id (torch's storages) into a value; without it they are refused.
    """

    def __init__(
        self,
        stream: BinaryIO,
        names: Mapping[str, Builder | None],
        persistent: Callable[[Any], Any] | None = None,
    ) -> None:
        self.stream = _Bounded(stream)
        self.names = names
        self.persistent = persistent
        self.budget = self.stream.size + _SLACK
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Read up to STOP and return the value on top of the stack, still with :class:`Pending` in it."""
        try:
            for count, (op, arg, _) in enumerate(pickletools.genops(cast(IO[bytes], self.stream))):
                if count > MAX_OPCODES:
                    raise refuse(f"its pickle has more than {MAX_OPCODES} steps")
                if op.name == "STOP":
                    return self._pop()
                self._step(op.name, arg)
        except GenmeterError:
            raise
        except Exception as error:  # Whatever Python's parser of opcodes trips over in a damaged file.
            raise refuse(f"its pickle is damaged ({type(error).__name__})") from None
        raise refuse("its pickle ends too early")

    def spend(self, nbytes: int) -> None:
        """Count bytes that a value will hold; many values over one stretch of the file are a bomb."""
        self.budget -= nbytes
        if self.budget < 0:
            raise refuse("its arrays claim more bytes than the file has")

    def _step(self, name: str, arg: Any) -> None:
        if name in ("PROTO", "FRAME"):
            return
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            self.stack.append(bytes(arg) if isinstance(arg, bytearray) else arg)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[int(arg)] = self._top()
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self._top()
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[int(arg)])
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "MARK"):
            self.stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "MARK": _Mark}[name]())
        elif name == "GLOBAL":
            self._name(str(arg).replace(" ", "."))
        elif name == "STACK_GLOBAL":
            attribute, module = self._pop(), self._pop()
            self._name(f"{module}.{attribute}")
        elif name in ("REDUCE", "NEWOBJ"):  # To a table of words, an object's class is one more word.
            self._reduce()
        elif name == "BUILD":
            state = self._pop()
            _build(self, self._top(), state)
        elif name == "BINPERSID":
            if self.persistent is None:
                raise refuse("it refers to data outside of itself")
            self.stack.append(self.persistent(self._pop()))
        else:
            self._container(name)

    def _container(self, name: str) -> None:
        if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            n = int(name[-1])
            self.stack.append(tuple(reversed([self._pop() for _ in range(n)])))
        elif name in ("TUPLE", "LIST"):
            items = self._to_mark()
            self.stack.append(tuple(items) if name == "TUPLE" else items)
        elif name == "DICT":
            items = self._to_mark()
            self.stack.append({})
            self._set(items)
        elif name in ("APPEND", "APPENDS"):
            items = [self._pop()] if name == "APPEND" else self._to_mark()
            target = self._top()
            if type(target) is not list:
                raise refuse("it appends to something that is no list")
            target.extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            self._set([self._pop(), self._pop()][::-1] if name == "SETITEM" else self._to_mark())
        else:
            raise refuse(f"it uses {name}, which arrays do not need")

    def _set(self, items: list[Any]) -> None:
        target = self._top()
        if isinstance(target, Pending) and target.kind == "dict":
            target = target.value
        if type(target) is not dict or len(items) % 2:
            raise refuse("it sets items of something that is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int):
                raise refuse("a key is neither text nor a number")
            target[key] = value

    def _name(self, word: str) -> None:
        if word not in self.names:
            raise refuse(f"it names {word[:80]!r}, which is no array")
        self.stack.append(Name(word))

    def _reduce(self) -> None:
        args, function = self._pop(), self._pop()
        builder = self.names.get(function.word) if isinstance(function, Name) else None
        if builder is None or not isinstance(args, tuple):
            raise refuse("it calls something that builds no array")
        self.stack.append(builder(self, args))

    def _pop(self) -> Any:
        value = self.stack.pop()
        if isinstance(value, _Mark):
            raise refuse("its pickle is damaged (mark)")
        return value

    def _top(self) -> Any:
        value = self.stack[-1]
        if isinstance(value, _Mark):
            raise refuse("its pickle is damaged (mark)")
        return value

    def _to_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if isinstance(self.stack[index], _Mark):
                items = self.stack[index + 1 :]
                del self.stack[index:]
                return items
        raise refuse("its pickle is damaged (mark)")


class _Bounded:
    """A stream that never allocates for bytes that are not there, and only has what ``genops`` asks for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        start = stream.tell()
        self._end = stream.seek(0, 2)
        stream.seek(start)
        self.size = self._end - start

    def read(self, n: int) -> bytes:
        if n > self._end - self._stream.tell():
            raise refuse("its pickle ends too early")
        return self._stream.read(n)

    def readline(self) -> bytes:
        return self._stream.readline(_MAX_LINE)

    def tell(self) -> int:
        return self._stream.tell()


@dataclass
class _Counter:
    values: int = 0


def resolve(value: Any, leaf: Callable[[Any], Any] | None = None) -> Any:
    """Replace every :class:`Pending` by its value; ``leaf`` may turn other objects (torch tensors) into arrays.

    Raises:
        GenmeterError: ``weights_mismatch`` for anything unfinished, cyclic, or too deeply or widely shared.
    """
    return _resolve(value, leaf, MAX_DEPTH, _Counter())


def _resolve(value: Any, leaf: Callable[[Any], Any] | None, depth: int, counter: _Counter) -> Any:
    counter.values += 1
    if depth <= 0 or counter.values > MAX_VALUES:
        raise refuse("its containers are nested too deeply or hold too many values")
    if isinstance(value, Pending):
        if value.kind not in ("array", "dict", "module") or value.value is None:
            raise refuse("it holds an unfinished array")
        value = value.value
    if isinstance(value, dict):
        return {key: _resolve(item, leaf, depth - 1, counter) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, leaf, depth - 1, counter) for item in value]
    if isinstance(value, tuple):
        return tuple(_resolve(item, leaf, depth - 1, counter) for item in value)
    if value is None or isinstance(value, str | bytes | int | float | np.ndarray | np.generic):
        return value
    if leaf is not None:
        return leaf(value)
    raise refuse("it holds something that is neither array, number nor text")


def _build(machine: Machine, target: Any, state: Any) -> None:
    if not isinstance(target, Pending):
        raise refuse("it sets the state of something that is no array")
    if target.kind == "dtype":
        _, order, *rest = state
        if any(item is not None for item in rest[:3]) or order not in ("<", ">", "|", "="):
            raise refuse("it has a structured dtype")
        if target.value.itemsize > 1 and order in "<>":
            target.value = target.value.newbyteorder(order)
    elif target.kind == "array":
        if len(state) == 5:
            state = state[1:]
        shape, dtype, fortran, data = state
        target.value = _array(machine, shape, dtype, bool(fortran), data)
    elif target.kind == "module":  # A module of TorchScript: its attributes by name.
        if not isinstance(state, dict):
            raise refuse("a module has no plain attributes")
        target.value = state
    elif target.kind != "dict":  # An OrderedDict's state is bookkeeping of torch's modules: not needed.
        raise refuse("it sets the state of something that is no array")


def _array(machine: Machine, shape: Any, dtype: Any, fortran: bool, data: Any) -> np.ndarray:
    if isinstance(data, str):  # Python 2 wrote bytes as text.
        data = data.encode("latin-1")
    if not isinstance(dtype, Pending) or dtype.kind != "dtype" or not isinstance(data, bytes):
        raise refuse("an array is not given as plain bytes of a plain dtype")
    if not isinstance(shape, tuple) or len(shape) > 32 or not all(type(n) is int and n >= 0 for n in shape):
        raise refuse("an array has no proper shape")
    kind: np.dtype[Any] = dtype.value
    if math.prod(shape) * kind.itemsize != len(data):
        raise refuse(f"an array of shape {shape} and dtype {kind} does not have {len(data)} bytes")
    machine.spend(len(data))
    array = np.frombuffer(data, dtype=kind).reshape(shape, order="F" if fortran else "C")
    return array if kind.isnative else array.astype(kind.newbyteorder("="))


def _reconstruct(machine: Machine, args: tuple[Any, ...]) -> Pending:
    cls, _, _ = args
    if not isinstance(cls, Name) or cls.word != "numpy.ndarray":
        raise refuse("it holds an array of a class of its own")
    return Pending("array", None)


def _from_buffer(machine: Machine, args: tuple[Any, ...]) -> np.ndarray:
    data, dtype, shape, order = args
    return _array(machine, shape, dtype, order == "F", data)


def _dtype(machine: Machine, args: tuple[Any, ...]) -> Pending:
    word = str(args[0])
    if word[:1] not in _KINDS or not word[1:].isdigit() or int(word[1:]) not in _KINDS[word[0]]:
        raise refuse(f"it has the dtype {word[:20]!r}, which is no plain number")
    return Pending("dtype", np.dtype(word))


def _scalar(machine: Machine, args: tuple[Any, ...]) -> Any:
    dtype, data = args
    return _array(machine, (), dtype, False, data)[()]


def _encode(machine: Machine, args: tuple[Any, ...]) -> bytes:
    text, encoding = args
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise refuse("it encodes text in an unexpected way")
    return text.encode("latin-1")


def _no_bytes(machine: Machine, args: tuple[Any, ...]) -> bytes:
    if args:
        raise refuse("it builds bytes in an unexpected way")
    return b""  # How the oldest protocols write an empty one.


ARRAY_NAMES: Mapping[str, Builder | None] = {
    "numpy.ndarray": None,
    "numpy.dtype": _dtype,
    "_codecs.encode": _encode,
    "__builtin__.bytes": _no_bytes,
    **{f"numpy.{core}.multiarray._reconstruct": _reconstruct for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _scalar for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": _from_buffer for core in ("core", "_core")},
}
"""The names that pickles of plain numpy arrays and scalars mention, whichever numpy wrote them."""
