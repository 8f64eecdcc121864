"""Files of torch's in both formats, right and wrong ones, made without torch; and tensors' bytes."""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict

import numpy as np
import torch


def whole(tensor) -> bytes:
    return b"".join(block.tobytes() for block in tensor.blocks())


def payload(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


class Global(str):
    """A global in a pickle, as "module name"."""


class Call(tuple):
    """(function, arguments): what a pickle asks to be called."""


class Id(tuple):
    """A persistent id."""


def tensor(numel=4, shape=(2, 2), strides=(2, 1), key="0", kind="FloatStorage", view=()) -> Call:
    """A tensor in the storage `key`. `view` is (None,) in legacy files, absent in zip files."""
    storage = Id(("storage", Global(f"torch {kind}"), key, "cpu", numel, *view))
    arguments = (storage, 0, shape, strides, False, OrderedDict())
    return Call((Global("torch._utils _rebuild_tensor_v2"), arguments))


def dump(value) -> bytes:
    """The pickle of `value`, in which bytes are instructions as they are."""
    return b"\x80\x02" + _dump(value) + b"."


def _dump(value) -> bytes:
    match value:
        case Global():
            module, name = value.split(" ")
            return f"c{module}\n{name}\n".encode()
        case Call():
            return _dump(value[0]) + _dump(value[1]) + b"R"
        case Id():
            return _dump(tuple(value)) + b"Q"
        case tuple():
            return b"(" + b"".join(map(_dump, value)) + b"t"
        case list():
            return b"](" + b"".join(map(_dump, value)) + b"e"
        case dict():
            new = b"ccollections\nOrderedDict\n)R" if isinstance(value, OrderedDict) else b"}"
            return new + b"(" + b"".join(_dump(k) + _dump(v) for k, v in value.items()) + b"u"
        case bytes():
            return value
    return pickle.dumps(value, 2)[2:-1]


DATA = np.arange(4, dtype="<f4").tobytes()
MAGIC = 0x1950A86A20F9469CFC6C


def zipped(state, data=DATA, storages=("0",), compression=zipfile.ZIP_STORED, **extra) -> bytes:
    """A zip file of torch's; `extra` replaces or adds members, None removes one."""
    members = {"data.pkl": dump(state), "byteorder": b"little", "version": b"3\n"}
    members |= {f"data/{key}": data for key in storages} | extra
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, content in members.items():
            if content is not None:
                archive.writestr(f"m/{name}", content)
    return stream.getvalue()


def legacy(state, data=DATA, keys=("0",), numel=4, magic=MAGIC) -> bytes:
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
    pickles = [magic, 1001, system, state, list(keys)]
    storages = b"".join(struct.pack("<q", numel) + data for _ in keys)
    return b"".join(map(dump, pickles)) + storages
