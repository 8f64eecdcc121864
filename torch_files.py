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

from tensors import BFLOAT16, MAX_HEADER, InputError, Tensor, are_sizes, span, stored_members

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_STORAGES = {
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
        raise InputError(f"{path}: torch's first format, a tar file: torch.save it again")
    else:
        raise InputError(f"{path}: not a file of torch's: neither a zip file nor a pickle")
    try:
        return read(path)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _read_zip(path: Path) -> dict[str, Tensor]:
    members = stored_members(path)
    pickles = [n for n in members if n.endswith("/data.pkl") and n.count("/") == 1]
    if len(pickles) != 1:
        raise ValueError("a zip file, but not of torch's: no data.pkl")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}constants.pkl" in members:
        raise ValueError("a TorchScript archive, not a state dict")
    if _contents(path, members.get(f"{root}byteorder")).strip() not in (b"", b"little"):
        raise ValueError("big-endian: torch.save it again on a little-endian machine")
    storages: dict[str, tuple[str, int]] = {}
    state = unpickle(io.BytesIO(_contents(path, members[pickles[0]])), storages)
    places = {}
    for key, (kind, numel) in storages.items():
        if f"{root}data/{key}" not in members:
            raise ValueError(f"storage {key} is missing")
        places[key], size = members[f"{root}data/{key}"]
        if size != numel * _STORAGES[kind].itemsize:
            raise ValueError(f"storage {key} has {size} bytes for {numel} elements of a {kind}")
    return _tensors(path, state, places)


def _contents(path: Path, place: tuple[int, int] | None) -> bytes:
    offset, size = place or (0, 0)
    if size > MAX_HEADER:
        raise ValueError(f"the pickle is too large for a state dict: {size} bytes")
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size)


def _read_legacy(path: Path) -> dict[str, Tensor]:
    size = path.stat().st_size
    with open(path, "rb") as file:
        pickles = io.BytesIO(file.read(MAX_HEADER))
        if unpickle(pickles) != _MAGIC:
            raise ValueError("not a file of torch's: a pickle of something else")
        if unpickle(pickles) != _PROTOCOL:
            raise ValueError("an unknown version of torch's legacy format")
        system = unpickle(pickles)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise ValueError("big-endian: torch.save it again on a little-endian machine")
        storages: dict[str, tuple[str, int]] = {}
        state = unpickle(pickles, storages)
        keys = unpickle(pickles)
        if type(keys) is not list or not all(type(key) is str for key in keys):
            raise ValueError("no list of storages")
        if sorted(keys) != sorted(storages):
            raise ValueError("the list of storages is not that of the tensors")
        places, at = {}, pickles.tell()
        for key in keys:
            kind, numel = storages[key]
            file.seek(at)
            field = file.read(8)
            if len(field) == 8 and (found := int.from_bytes(field, "little")) != numel:
                raise ValueError(f"storage {key} has {found} elements, its tensors say {numel}")
            places[key] = at + 8
            at += 8 + numel * _STORAGES[kind].itemsize
            if at > size:
                raise ValueError(f"truncated: storage {key} lies beyond the end of the file")
    if at != size:
        raise ValueError(f"{size - at} bytes follow the last storage")
    return _tensors(path, state, places)


def _tensors(path: Path, state: object, places: Mapping[str, int]) -> dict[str, Tensor]:
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict):
        raise ValueError(f"a {type(state).__name__}, not a state dict")
    return {name: _tensor(path, name, view, places) for name, view in state.items()}


def _tensor(path: Path, name: object, view: object, places: Mapping[str, int]) -> Tensor:
    if type(name) is not str or not isinstance(view, _View):
        raise ValueError(f"not a state dict: {name} is a {type(view).__name__}")
    storage, dtype = view.storage, _STORAGES[view.storage.kind]
    if dtype.kind not in "fV":
        raise ValueError(f"{name} is in a {storage.kind}, not of a floating-point type")
    room = storage.stop - storage.start
    # Some elements of an expanded tensor are the same: a small file could ask for any size.
    if view.offset + span(view.shape, view.strides) > room or prod(view.shape) > room:
        raise ValueError(f"{name} reaches beyond its storage")
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
    start = stream.tell()
    try:
        return _run(stream, {} if storages is None else storages)
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        kind = type(error).__name__
        raise ValueError(f"malformed pickle at byte {start}: {kind}: {error}") from None


def _run(stream: BinaryIO, storages: dict[str, tuple[str, int]]) -> object:
    stack: list = []
    marks: list[int] = []
    memo: dict[int, object] = {}

    def pop(count: int) -> list:
        """The last `count` values."""
        first = len(stack) - count
        if first < 0:
            raise IndexError("pop from an empty stack")
        values = stack[first:]
        del stack[first:]
        return values

    def pop_marked() -> list:
        return pop(len(stack) - marks.pop())

    for opcode, value, _ in pickletools.genops(stream):
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(value)
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINSTRING" | "SHORT_BINSTRING":
                stack.append(value)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode.name])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                stack.append({"EMPTY_TUPLE": (), "EMPTY_LIST": [], "EMPTY_DICT": {}}[opcode.name])
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(pop_marked()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(pop(int(opcode.name[-1]))))
            case "APPEND" | "APPENDS":
                values = pop(1) if opcode.name == "APPEND" else pop_marked()
                stack[-1].extend(values)
            case "SETITEM" | "SETITEMS":
                values = pop(2) if opcode.name == "SETITEM" else pop_marked()
                stack[-1].update(_pairs(zip(values[::2], values[1::2], strict=True)))
            case "BUILD":
                pop(1)  # an OrderedDict's attributes: torch's _metadata
            case "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                memo[len(memo) if value is None else value] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case "GLOBAL":
                stack.append(_global(value))
            case "STACK_GLOBAL":
                stack.append(_global(" ".join(pop(2))))
            case "REDUCE":
                function, arguments = pop(2)
                stack.append(function(*arguments))
            case "BINPERSID":
                stack.append(_storage(storages, *pop(1)[0]))
            case "STOP":
                return pop(1)[0]
            case name:
                raise ValueError(f"the pickle has the instruction {name}, which no state dict has")


def _pairs(items) -> dict:
    pairs = dict.fromkeys(())
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
        raise ValueError(f"storage {key} is described in two ways")
    _, start, size = view or (key, 0, numel)
    if not are_sizes((numel, start, size)) or start + size > numel:
        raise ValueError(f"storage {key} has an impossible size, or a view beyond it")
    return _Storage(key, kind, start, start + size)


def _rebuild_tensor(
    storage, offset, shape, strides, requires_grad=False, hooks=None, metadata=None
) -> _View:
    if not isinstance(storage, _Storage) or type(shape) is not tuple or type(strides) is not tuple:
        raise TypeError("a malformed tensor")
    if not are_sizes((offset, *shape, *strides)) or len(shape) != len(strides):
        raise ValueError("a tensor has an impossible shape")
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
        raise ValueError(f"the pickle asks for {name.replace(' ', '.')}, which no state dict needs")
    return _FUNCTIONS[name]
