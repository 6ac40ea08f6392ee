"""Reading a PyTorch checkpoint without PyTorch and without running it.

Both formats of ``torch.save`` are read: the zip archive (since 1.6) and the stream before it. Tensors come
out as numpy arrays on the CPU, whatever device they were saved from; everything else a checkpoint may hold
(optimizers' classes, modules, code) is refused by the machine of :mod:`genmeter.weights.pickle_reader`.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from genmeter.errors import GenmeterError
from genmeter.weights.pickle_reader import ARRAY_NAMES, Builder, Machine, Name, Pending, refuse, resolve

_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGES = {
    "FloatStorage": "f4",
    "DoubleStorage": "f8",
    "HalfStorage": "f2",
    "BFloat16Storage": "bf16",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "b1",
}


@dataclass
class _Storage:
    dtype: str
    numel: int
    key: str = ""
    data: bytes | None = None

    @property
    def nbytes(self) -> int:
        return self.numel * _itemsize(self.dtype)


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def read_torchscript(stream: BinaryIO) -> Any:
    """The attributes of the module that ``torch.jit.save`` was given, without running any of its code.

    Args:
        stream: A seekable binary stream at the start of the archive.

    Returns:
        A dict for each module, by attribute: arrays, numbers, text, and dicts of its submodules. Parameters, buffers
        and plain attributes are not told apart.

    Raises:
        GenmeterError: ``weights_mismatch`` as :func:`read_checkpoint` does.
    """
    start = stream.tell()
    head = stream.read(4)
    size = stream.seek(0, 2) - start
    stream.seek(start)
    if head != b"PK\x03\x04":
        raise refuse("it is no TorchScript archive")
    return _Reader(size, _ScriptNames()).read_zip(stream)


def read_checkpoint(stream: BinaryIO, only: str | None = None) -> Any:
    """The tree that ``torch.save`` was given, with numpy arrays in place of tensors.

    Args:
        stream: A seekable binary stream at the start of the checkpoint.
        only: Where the tree is a dict with this key, read what stands there and nothing else: the weights of a
            training checkpoint without its optimizer, twice as large. The rest must be plain data all the same.

    Returns:
        Dicts, lists, tuples, numbers and text; arrays are C-contiguous and native. bfloat16 becomes
        float32, which holds every bfloat16 value exactly.

    Raises:
        GenmeterError: ``weights_mismatch`` when the file is no checkpoint, is damaged, holds anything
            beside tensors, numpy values and plain data, or claims more than its bytes can hold.
    """
    start = stream.tell()
    head = stream.read(4)
    size = stream.seek(0, 2) - start
    stream.seek(start)
    reader = _Reader(size, only=only)
    if head == b"PK\x03\x04":
        return reader.read_zip(stream)
    if head[:1] == b"\x80":
        return reader.read_stream(stream)
    if head[:1] in (b"<", b"{"):
        raise refuse("it is a page of text, no checkpoint: a server or proxy answered instead of the file's host")
    raise refuse("it is in neither format of torch.save")


class _Reader:
    def __init__(self, size: int, names: Mapping[str, Builder | None] | None = None, only: str | None = None) -> None:
        self.names = _NAMES if names is None else names
        self.only = only
        self.fetch: Callable[[_Storage], bytes] | None = None
        self.storages: dict[str, _Storage] = {}
        self.unread = size  # What all storages together may claim: the file's own bytes.
        self.budget = 4 * size + (1 << 16)  # What all tensors may hold: some share a storage (tied weights).

    def read_zip(self, stream: BinaryIO) -> Any:
        try:
            with zipfile.ZipFile(stream) as archive:
                infos = {info.filename: info for info in archive.infolist()}
                pickles = [name for name in infos if name.count("/") == 1 and name.endswith("/data.pkl")]
                if len(pickles) != 1:
                    raise refuse("it is a zip archive without one data.pkl, so no checkpoint")
                root = pickles[0][: -len("data.pkl")]
                order = self._member(archive, infos, root + "byteorder") if root + "byteorder" in infos else b"little"
                if order.strip() != b"little":
                    raise refuse("it was written on a big-endian machine")
                tree = Machine(io.BytesIO(self._member(archive, infos, pickles[0])), self.names, self._persistent).run()
                for key, storage in self.storages.items():
                    if infos[f"{root}data/{key}"].file_size != storage.nbytes:
                        raise refuse("a storage has another size than its tensor says")
                self.fetch = lambda storage: self._member(archive, infos, f"{root}data/{storage.key}")
                return self._resolve(tree)
        except GenmeterError:
            raise
        except Exception as error:  # zipfile meets damage with a dozen kinds of exception.
            raise refuse(f"its archive is damaged ({type(error).__name__})") from None

    def read_stream(self, stream: BinaryIO) -> Any:
        if Machine(stream, {}).run() != _MAGIC or Machine(stream, {}).run() != 1001:
            raise refuse("it is a pickle, but no checkpoint of torch.save")
        system = resolve(Machine(stream, {}).run())
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise refuse("it was written on a big-endian machine")
        tree = Machine(stream, self.names, self._persistent).run()
        keys = resolve(Machine(stream, {}).run())
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise refuse("its list of storages is damaged")
        for key in keys:
            storage = self.storages.get(key)
            count = int.from_bytes(stream.read(8), "little")
            if storage is None or count != storage.numel:
                raise refuse("a storage has another size than its tensor says")
            storage.data = stream.read(storage.nbytes)
        return self._resolve(tree)

    def _resolve(self, tree: Any) -> Any:
        if self.only is None:
            return resolve(tree, self._array)
        top = tree.value if isinstance(tree, Pending) else tree
        if not isinstance(top, dict) or self.only not in top:
            return resolve(tree, self._array)
        for key, value in top.items():  # what is left out is looked through like all else, but for its numbers
            if key != self.only:
                resolve(value, _nothing)
        return {self.only: resolve(top[self.only], self._array)}

    def _member(self, archive: zipfile.ZipFile, infos: Mapping[str, zipfile.ZipInfo], name: str) -> bytes:
        # torch.save never compresses; a compressed member could unpack to any size.
        if infos[name].compress_type != zipfile.ZIP_STORED:
            raise refuse("its archive is compressed, as torch.save never writes it")
        return archive.read(infos[name])

    def _persistent(self, pid: Any) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or pid[0] != "storage" or not isinstance(pid[1], Name):
            raise refuse("it refers to something that is no storage")
        _, kind, key, _, numel, *view = pid
        if view and view[0] is not None:
            raise refuse("it holds views of storages, as only very old versions of torch wrote them")
        dtype = _STORAGES.get(kind.word.removeprefix("torch."))
        if dtype is None or not isinstance(key, str) or type(numel) is not int or numel < 0:
            raise refuse("a storage has no plain dtype or size")
        if key not in self.storages:
            self.storages[key] = _Storage(dtype, numel, key)
            self.unread -= self.storages[key].nbytes
            if self.unread < 0:
                raise refuse("its storages claim more bytes than the file has")
        storage = self.storages[key]
        if storage.dtype != dtype or storage.numel != numel:
            raise refuse("one storage is given two sizes")
        return storage

    def _array(self, value: Any) -> np.ndarray:
        if not isinstance(value, _Tensor):
            raise refuse("it holds something that is neither tensor, number nor text")
        storage = value.storage
        if storage.data is None and self.fetch is not None:
            storage.data = self.fetch(storage)
        if storage.data is None or len(storage.data) != storage.nbytes:
            raise refuse("a storage does not have the bytes that its size says")
        count = math.prod(value.size)
        self.budget -= count * _itemsize(storage.dtype)
        if self.budget < 0:
            raise refuse("its tensors claim more bytes than the file has")
        last = value.offset + sum((n - 1) * s for n, s in zip(value.size, value.stride, strict=True))
        if count and last >= storage.numel:
            raise refuse("a tensor reaches beyond its storage")
        if storage.dtype == "bf16":
            flat = (np.frombuffer(storage.data, "<u2").astype("<u4") << 16).view("<f4")
        else:
            flat = np.frombuffer(storage.data, np.dtype(storage.dtype).newbyteorder("<"))
        if not count:
            return np.zeros(value.size, flat.dtype.newbyteorder("="))
        strides = tuple(s * flat.itemsize for s in value.stride)
        view = np.lib.stride_tricks.as_strided(flat[value.offset :], value.size, strides, writeable=False)
        return np.ascontiguousarray(view, dtype=flat.dtype.newbyteorder("=")).reshape(value.size)


def _nothing(value: Any) -> None:
    if not isinstance(value, _Tensor):
        raise refuse("it holds something that is neither tensor, number nor text")


def _itemsize(dtype: str) -> int:
    return 2 if dtype == "bf16" else np.dtype(dtype).itemsize


def _tensor(machine: Machine, args: tuple[Any, ...]) -> _Tensor:
    storage, offset, size, stride = args[:4]
    whole = all(isinstance(group, tuple) and all(type(n) is int and n >= 0 for n in group) for group in (size, stride))
    if not isinstance(storage, _Storage) or type(offset) is not int or offset < 0 or not whole:
        raise refuse("a tensor has no proper shape")
    if len(size) != len(stride) or len(size) > 32:
        raise refuse("a tensor has no proper shape")
    return _Tensor(storage, offset, size, stride)


def _parameter(machine: Machine, args: tuple[Any, ...]) -> Any:
    return args[0]


def _ordered(machine: Machine, args: tuple[Any, ...]) -> Pending:
    values: dict[str | int, Any] = {}
    for pairs in args:
        for key, value in pairs:
            if not isinstance(key, str | int):
                raise refuse("a key is neither text nor a number")
            values[key] = value
    return Pending("dict", values)


def _size(machine: Machine, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(args[0])


_NAMES: Mapping[str, Builder | None] = {
    **ARRAY_NAMES,
    "collections.OrderedDict": _ordered,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.Size": _size,
    **{f"torch.{name}": None for name in _STORAGES},
}


def _module(machine: Machine, args: tuple[Any, ...]) -> Pending:
    if args:
        raise refuse("a module is built in an unexpected way")
    return Pending("module", None)


def _same(machine: Machine, args: tuple[Any, ...]) -> Any:
    return args[0]


class _ScriptNames(Mapping[str, Builder | None]):
    """The names of a TorchScript archive: those of a checkpoint, typed containers, and classes of its own code.

    The last stand for a bag of attributes and nothing more; the code that the archive brings along is never read.
    """

    _extra: Mapping[str, Builder | None] = {
        f"torch.jit._pickle.{name}": _same
        for name in ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist", "restore_type_tag")
    }

    def __getitem__(self, word: str) -> Builder | None:
        if word.startswith("__torch__."):
            return _module
        return self._extra[word] if word in self._extra else _NAMES[word]

    def __iter__(self) -> Iterator[str]:
        yield from {**_NAMES, **self._extra}

    def __len__(self) -> int:
        return len(_NAMES) + len(self._extra)
