"""Pickles of torch tensors, and ones that no torch would write, made without torch."""

import pickle
from collections import OrderedDict


class Global(str):
    """A global in a pickle, as "module name"."""


class Call(tuple):
    """(function, arguments): what a pickle asks to be called."""


class Id(tuple):
    """A persistent id."""


def tensor(key, numel, shape, strides, offset=0, kind="FloatStorage", view=()) -> Call:
    """A tensor in the storage `key`. `view` is (None,) in legacy files, absent in zip files."""
    storage = Id(("storage", Global(f"torch {kind}"), key, "cpu", numel, *view))
    arguments = (storage, offset, shape, strides, False, OrderedDict())
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
