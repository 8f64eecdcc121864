"""Torch's .bin files, read one tensor at a time and without torch.

A file is either a zip of a pickle and one member per storage, or, as written before torch 1.6, a
stream: four pickles, a pickled list of storage keys, and the storages in that order. In both, the
pickle describes tensors as views of storages.

The pickle is run here, by the few instructions that state dicts are made of. It cannot name code,
only what `_FUNCTIONS` and `_STORAGES` list. And it cannot fill the memory, as it could through
Python's own Unpickler (ten bytes suffice: a memo entry with a high number).
"""

import io
import pickletools
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

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
    with open(path, "rb") as file:
        head = file.read(512)
    if head.startswith(b"PK\3\4"):
        read = _read_zip
    elif head.startswith(b"\x80"):
        read = _read_legacy
    elif head[257:262] == b"ustar":
        raise InputError(
            f"{path}: torch's first format, a tar file: load and save it with a torch of today"
        )
    else:
        raise InputError(f"{path}: not a file of torch's: neither a zip file nor a pickle")
    try:
        return read(path)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_zip(path: Path) -> dict[str, Tensor]:
    members = stored_members(path)
    pickles = [n for n in members if n.endswith("/data.pkl") and n.count("/") == 1]
    if len(pickles) != 1:
        raise InputError("a zip file, but not of torch's: no data.pkl")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}constants.pkl" in members:
        raise InputError("a TorchScript archive, not a state dict")
    if _contents(path, members.get(f"{root}byteorder")).strip() not in (b"", b"little"):
        raise InputError("big-endian: save it again on a little-endian machine")
    storages: dict[str, tuple[str, int]] = {}
    state = unpickle(io.BytesIO(_contents(path, members[pickles[0]])), storages)
    places = {}
    for key, (kind, numel) in storages.items():
        if f"{root}data/{key}" not in members:
            raise InputError(f"storage {key} is missing")
        places[key], size = members[f"{root}data/{key}"]
        if size != numel * _STORAGES[kind].itemsize:
            raise InputError(f"storage {key} has {size} bytes for {numel} elements of a {kind}")
    return _tensors(path, state, places)


def _contents(path: Path, place: tuple[int, int] | None) -> bytes:
    offset, size = place or (0, 0)
    if size > MAX_HEADER:
        raise InputError(f"the pickle is too large for a state dict: {size} bytes")
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size)


def _read_legacy(path: Path) -> dict[str, Tensor]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        pickles = io.BytesIO(file.read(MAX_HEADER))
        if unpickle(pickles) != _MAGIC:
            raise InputError("not a file of torch's: a pickle of something else")
        if unpickle(pickles) != _PROTOCOL:
            raise InputError("an unknown version of torch's legacy format")
        system = unpickle(pickles)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise InputError("big-endian: save it again on a little-endian machine")
        storages: dict[str, tuple[str, int]] = {}
        state = unpickle(pickles, storages)
        keys = unpickle(pickles)
        if type(keys) is not list or not all(type(key) is str for key in keys):
            raise InputError("no list of storages")
        if sorted(keys) != sorted(storages):
            raise InputError("the list of storages is not that of the tensors")
        places, at = {}, pickles.tell()
        for key in keys:
            kind, numel = storages[key]
            file.seek(at)
            field = file.read(8)
            if len(field) == 8 and (found := int.from_bytes(field, "little", signed=True)) != numel:
                raise InputError(f"storage {key} has {found} elements, its tensors say {numel}")
            places[key] = at + 8
            at += 8 + numel * _STORAGES[kind].itemsize
            if at > size:
                raise InputError(f"truncated: storage {key} lies beyond the end of the file")
    if at != size:
        raise InputError(f"{size - at} bytes follow the last storage")
    return _tensors(path, state, places)


def _tensors(path: Path, state: object, places: Mapping[str, int]) -> dict[str, Tensor]:
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict):
        raise InputError(f"a {type(state).__name__}, not a state dict")
    return {name: _tensor(path, name, view, places) for name, view in state.items()}


def _tensor(path: Path, name: object, view: object, places: Mapping[str, int]) -> Tensor:
    if type(name) is not str:
        raise InputError(f"not a state dict: it has the number {name} for a name")
    if not isinstance(view, _View):
        raise InputError(f"not a state dict: {name} is no tensor but {type(view).__name__}")
    storage, dtype = view.storage, _STORAGES[view.storage.kind]
    if dtype.kind not in "fV":
        raise InputError(f"{name} is in a {storage.kind}, not a floating-point type")
    room = storage.stop - storage.start
    # Some elements of an expanded tensor are the same: a small file could ask for any size.
    if view.offset + span(view.shape, view.strides) > room or prod(view.shape) > room:
        raise InputError(f"{name} reaches beyond its storage")
    offset = places[storage.key] + (storage.start + view.offset) * dtype.itemsize
    strides = None if _is_contiguous(view) else view.strides
    return Tensor(path, offset, dtype, view.shape, strides)


def _is_contiguous(view: _View) -> bool:
    expected = 1
    for n, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if n != 1 and stride != expected:
            return 0 in view.shape
        expected *= n
    return True


# ---------------------------------------------------------------------------------------------
# The pickle


def unpickle(stream: BinaryIO, storages: dict[str, tuple[str, int]] | None = None) -> object:
    """What the pickle at the stream's position describes; the stream is left behind it.

    Made of numbers, strings, lists, tuples, dicts and `_View`s, never of anything else. The
    storages it names are added to `storages`: key -> (kind, number of elements).
    """
    machine = _Machine({} if storages is None else storages)
    try:
        for opcode, value, position in pickletools.genops(stream):
            where = f"{opcode.name} at byte {position}"
            if opcode.name == "STOP":
                return machine.pop(1)[0]
            machine.step(opcode.name, value)
        raise ValueError("no STOP")
    except InputError:
        raise
    except (LookupError, TypeError, AttributeError):
        raise InputError(f"malformed pickle: {where}") from None
    except ValueError as error:
        raise InputError(f"truncated or malformed pickle: {error}") from None


class _Machine:
    """Runs a pickle's instructions."""

    def __init__(self, storages: dict[str, tuple[str, int]]):
        self.storages = storages
        self.stack: list = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def pop(self, count: int) -> list:
        """The last `count` values."""
        first = len(self.stack) - count
        if first < 0:
            raise IndexError
        values = self.stack[first:]
        del self.stack[first:]
        return values

    def pop_marked(self) -> list:
        return self.pop(len(self.stack) - self.marks.pop())

    def step(self, name: str, value) -> None:
        push = self.stack.append
        match name:
            case "PROTO" | "FRAME":
                pass
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                push(value)
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINSTRING" | "SHORT_BINSTRING":
                push(value)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                push({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                push({"EMPTY_TUPLE": (), "EMPTY_LIST": [], "EMPTY_DICT": {}}[name])
            case "MARK":
                self.marks.append(len(self.stack))
            case "TUPLE":
                push(tuple(self.pop_marked()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                push(tuple(self.pop(int(name[-1]))))
            case "APPEND" | "APPENDS":
                values = self.pop(1) if name == "APPEND" else self.pop_marked()
                self.stack[-1].extend(values)
            case "SETITEM" | "SETITEMS":
                values = self.pop(2) if name == "SETITEM" else self.pop_marked()
                self.stack[-1].update(_pairs(zip(values[::2], values[1::2], strict=True)))
            case "BUILD":
                self.pop(1)  # an OrderedDict's attributes: torch's _metadata
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                self.memo[len(self.memo) if value is None else value] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                push(self.memo[value])
            case "GLOBAL":
                push(_global(value))
            case "STACK_GLOBAL":
                push(_global(" ".join(self.pop(2))))
            case "REDUCE":
                function, arguments = self.pop(2)
                push(function(*arguments))
            case "BINPERSID":
                push(_storage(self.storages, *self.pop(1)[0]))
            case _:
                raise InputError(f"the pickle's instruction {name} is in no state dict's")


def _pairs(items) -> dict:
    pairs: dict[str | int, object] = {}
    for key, value in items:
        if type(key) not in (str, int):  # hashing nested tuples can take forever
            raise TypeError(f"a {type(key).__name__} as the key of a dict")
        pairs[key] = value
    return pairs


def _storage(
    storages: dict[str, tuple[str, int]], tag, kind, key, location, numel, view=None
) -> _Storage:
    if tag != "storage" or type(kind) is not str or kind not in _STORAGES or type(key) is not str:
        raise TypeError("a malformed storage")
    if storages.setdefault(key, (kind, numel)) != (kind, numel):
        raise InputError(f"storage {key} is described in two ways")
    _, start, size = view or (key, 0, numel)
    if not are_sizes((numel, start, size)) or start + size > numel:
        raise InputError(f"storage {key} has an impossible size, or a view beyond it")
    return _Storage(key, kind, start, start + size)


def _rebuild_tensor(
    storage, offset, shape, strides, requires_grad=False, hooks=None, metadata=None
) -> _View:
    if not isinstance(storage, _Storage) or type(shape) is not tuple or type(strides) is not tuple:
        raise TypeError("a malformed tensor")
    if not are_sizes((offset, *shape, *strides)) or len(shape) != len(strides):
        raise InputError("a tensor has an impossible shape")
    if metadata:
        raise TypeError("a tensor with a conjugate or negative bit")
    return _View(storage, offset, shape, strides)


def _rebuild_parameter(tensor, requires_grad, hooks) -> _View:
    return tensor


_FUNCTIONS = {
    "collections OrderedDict": lambda items=(): _pairs(items),
    "torch._utils _rebuild_tensor": _rebuild_tensor,
    "torch._utils _rebuild_tensor_v2": _rebuild_tensor,
    "torch._utils _rebuild_parameter": _rebuild_parameter,
    "torch Size": tuple,
}


def _global(name: str) -> object:
    """What stands for a global that the pickle names, as "module name"."""
    module, _, kind = name.rpartition(" ")
    if kind in _STORAGES and module == ("torch.storage" if kind == "UntypedStorage" else "torch"):
        return kind
    if name not in _FUNCTIONS:
        raise InputError(f"the pickle asks for {name.replace(' ', '.')}, which no state dict needs")
    return _FUNCTIONS[name]
