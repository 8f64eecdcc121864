"""Torch's .bin files, read one tensor at a time and without torch.

A file is either a zip of a pickle and one member per storage, or, as written before torch 1.6, a
stream: four pickles, a pickled list of storage keys, and the storages in that order. In both, the
pickle describes tensors as views of storages.
"""

import io
import pickle
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np

from checkpoints.stored_zip import stored_members
from checkpoints.tensors import BFLOAT16, MAX_HEADER, Tensor, are_sizes, span
from errors import InputError

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_STORAGES: dict[str, np.dtype] = {
    "FloatStorage": np.dtype("<f4"),
    "DoubleStorage": np.dtype("<f8"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": BFLOAT16,
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
    "UntypedStorage": np.dtype("u1"),
}
# Those of which torch makes state dicts. Without sets and objects, nothing deep is ever hashed.
_INSTRUCTIONS = """PROTO FRAME STOP MARK BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE
    BINSTRING SHORT_BINSTRING NONE NEWTRUE NEWFALSE EMPTY_TUPLE EMPTY_LIST EMPTY_DICT TUPLE TUPLE1 TUPLE2
    TUPLE3 APPEND APPENDS SETITEM SETITEMS BUILD BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET GLOBAL
    STACK_GLOBAL REDUCE BINPERSID"""


@dataclass(frozen=True)
class _Storage:
    """Elements `start` to `stop` of the storage `key` (all of it, but in some legacy files)."""

    key: str
    kind: str
    start: int
    stop: int


@dataclass(frozen=True)
class _View:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch(path: Path) -> dict[str, Tensor]:
    """The tensors of a state dict that torch.save wrote, in either format.

    One within a dict, under "state_dict", is found too. InputError: not such a file, or damaged.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(4)
            if head == b"PK\3\4":
                return _read_zip(path, file)
            if head.startswith(b"\x80"):
                return _read_legacy(path, file)
        raise InputError("not a file of torch's: neither a zip file nor a pickle")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_zip(path: Path, file: BinaryIO) -> dict[str, Tensor]:
    members = stored_members(path)
    pickles = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise InputError("a zip file, but not of torch's: no data.pkl")
    root = pickles[0].removesuffix("data.pkl")
    offset, size = members.get(f"{root}byteorder", (0, 0))
    file.seek(offset)
    if file.read(min(size, 3)) == b"big":
        raise InputError("big-endian: save it again on a little-endian machine")
    offset, size = members[pickles[0]]
    file.seek(offset)
    unpickler = _Unpickler(io.BytesIO(file.read(min(size, MAX_HEADER))))
    state, places = unpickler.load(), {}
    for key, (kind, numel) in unpickler.storages.items():
        if f"{root}data/{key}" not in members:
            raise InputError(f"storage {key} is missing")
        places[key], size = members[f"{root}data/{key}"]
        if size != numel * _STORAGES[kind].itemsize:
            raise InputError(f"storage {key} has {size} bytes for {numel} elements of a {kind}")
    return _tensors(path, state, places)


def _read_legacy(path: Path, file: BinaryIO) -> dict[str, Tensor]:
    file.seek(0)
    pickles = io.BytesIO(file.read(MAX_HEADER))
    if _Unpickler(pickles).load() != _MAGIC or _Unpickler(pickles).load() != _PROTOCOL:
        raise InputError("not a file of torch's: a pickle of something else")
    system = _Unpickler(pickles).load()
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise InputError("big-endian: save it again on a little-endian machine")
    unpickler = _Unpickler(pickles)
    state, keys = unpickler.load(), _Unpickler(pickles).load()
    if not isinstance(keys, list) or not all(type(key) is str for key in keys):
        raise InputError("no list of storages")
    if sorted(keys) != sorted(unpickler.storages):
        raise InputError("the list of storages is not that of the tensors")
    places, at, size = {}, pickles.tell(), path.stat().st_size
    for key in keys:
        kind, numel = unpickler.storages[key]
        file.seek(at)
        found = int.from_bytes(file.read(8), "little")
        places[key] = at + 8
        at += 8 + numel * _STORAGES[kind].itemsize
        if at > size or found != numel:
            raise InputError(f"truncated or damaged: storage {key} has not {numel} elements")
    return _tensors(path, state, places)


def _tensors(path: Path, state: object, places: dict[str, int]) -> dict[str, Tensor]:
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict):
        raise InputError(f"a {type(state).__name__}, not a state dict")
    return {name: _tensor(path, name, view, places) for name, view in state.items()}


def _tensor(path: Path, name: object, view: object, places: dict[str, int]) -> Tensor:
    if type(name) is not str or not isinstance(view, _View):
        raise InputError(f"not a state dict: {name} is no tensor but {type(view).__name__}")
    storage, dtype = view.storage, _STORAGES[view.storage.kind]
    if dtype.kind not in "fV":
        raise InputError(f"{name} is in a {storage.kind}, not a floating-point type")
    room = storage.stop - storage.start
    # Some elements of an expanded tensor are the same: a small file could ask for any size.
    if view.offset + span(view.shape, view.strides) > room or prod(view.shape) > room:
        raise InputError(f"{name} reaches beyond its storage")
    offset = places[storage.key] + (storage.start + view.offset) * dtype.itemsize
    return Tensor(path, offset, dtype, view.shape, view.strides)


class Dict(dict):
    """A dict that hashes strings and numbers only: nested tuples can take forever."""

    def __init__(self, items=()):
        for key, value in items:
            self[key] = value

    def __setitem__(self, key, value):
        if type(key) not in (str, int):
            raise TypeError(f"a {type(key).__name__} as the key of a dict")
        super().__setitem__(key, value)


class _Unpickler(pickle._Unpickler):
    """Makes numbers, strings, lists, tuples, dicts and `_View`s, never anything else; runs no code of the file's.

    `storages` are those that the pickle names: key -> (kind, number of elements).
    """

    dispatch: ClassVar = {
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
        for name in _INSTRUCTIONS.split()
    }
    dispatch[pickle.EMPTY_DICT[0]] = lambda self: self.append(Dict())  # type: ignore[attr-defined]
    # An OrderedDict's attributes, torch's _metadata, are dropped.
    dispatch[pickle.BUILD[0]] = lambda self: self.stack.pop()  # type: ignore[attr-defined]

    def __init__(self, file: BinaryIO):
        super().__init__(file, encoding="latin-1")
        self.storages: dict[str, tuple[str, int]] = {}

    def load(self) -> object:
        """The file's next pickle. InputError: a malformed one, or no state dict's."""
        try:
            return super().load()
        except InputError:
            raise
        except Exception:  # of which damage brings about a dozen kinds
            raise InputError("truncated or malformed pickle, or not a state dict's") from None

    def find_class(self, module: str, name: str) -> object:
        """What stands for what a pickle calls: none of it is the real one."""
        if name in _STORAGES and module in ("torch", "torch.storage"):
            return name
        if (module, name) not in _CALLABLE:
            raise InputError(f"the pickle asks for {module}.{name}, which no state dict needs")
        return _CALLABLE[module, name]

    def persistent_load(self, pid) -> _Storage:
        _, kind, key, _, numel, *rest = pid
        if type(kind) is not str or kind not in _STORAGES or type(key) is not str:
            raise TypeError("a malformed storage")
        _, start, size = (rest and rest[0]) or (key, 0, numel)
        if not are_sizes((numel, start, size)) or start + size > numel:
            raise InputError(f"storage {key} has an impossible size, or a view beyond it")
        if self.storages.setdefault(key, (kind, numel)) != (kind, numel):
            raise InputError(f"storage {key} is described in two ways")
        return _Storage(key, kind, start, start + size)


def _rebuild_tensor(storage, offset, shape, strides, *unused) -> _View:
    if not isinstance(storage, _Storage) or type(shape) is not tuple or type(strides) is not tuple:
        raise TypeError("a malformed tensor")
    if not are_sizes((offset, *shape, *strides)) or len(shape) != len(strides):
        raise InputError("a tensor has an impossible shape")
    return _View(storage, offset, shape, strides)


_CALLABLE = {
    ("collections", "OrderedDict"): Dict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, requires_grad, hooks: tensor,
}
