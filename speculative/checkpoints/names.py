"""Checkpoints' tensor names -> ours, by a table for each architecture."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten

from speculative.checkpoints.tensors import Tensor, Tensors
from speculative.common.errors import InputError

_SHARED = "shared.weight"
_ENCODER, _DECODER = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
_COMPILED = "_orig_mod."  # what torch.compile puts into names
_ADAPTER = re.compile(r"base_model\.|.*\.(base_layer|lora_\w+)\.")  # in PEFT's names


@dataclass(frozen=True)
class Names:
    """A family's table. The first rule that matches a whole name gives ours; what none matches is left out.

    rules:     (pattern, our name with the pattern's groups in its braces); None instead of a name: drop it
    words:     a group's text -> ours, if it differs
    embedding: names that the embedding may have, best first; the head's name last
    prefix:    prefix of all names in some checkpoints
    """

    family: str  # in messages
    rules: Sequence[tuple[str, str | None]]
    words: Mapping[str, str]
    embedding: Sequence[str]
    prefix: str = ""

    def ours(self, name: str) -> str | None:
        """Our name of a checkpoint's tensor; None if we do not need it, "" if no rule matches."""
        for pattern, name_format in self.rules:
            match = re.fullmatch(pattern, name)
            if match:
                groups = (self.words.get(group, group) for group in match.groups())
                return name_format and name_format.format(*groups)
        return ""

    def renamed(self, tensors: Tensors) -> dict[str, Tensor]:
        """The tensors under our names, without dropped ones and, with a warning, unknown ones, such as TRL's heads."""
        ours = {name: self.ours(name) for name in tensors}
        unknown = [name for name, new in ours.items() if new == ""]
        if unknown:
            _warn(f"tensors that no {self.family} has: {', '.join(unknown)}")
        return {new: tensors[name] for name, new in ours.items() if new}

    def bare(self, tensors: Tensors) -> dict[str, Tensor]:
        """The tensors without the family's prefix and, with a warning, that of a class that the model was saved in."""
        for name in filter(_ADAPTER.match, tensors):
            raise InputError(f"{name} is PEFT's: merge_and_unload() the model before you save it")
        bare = {name.replace(_COMPILED, ""): tensor for name, tensor in tensors.items()}
        *inner, head = map(re.escape, self.embedding)  # the head has no prefix
        ends = rf"(?:{re.escape(self.prefix)})?(?:{'|'.join(inner)})|{head}"
        pattern = rf"((?:[^.]+\.)*?)(?:{ends})"
        embeddings = filter(None, (re.fullmatch(pattern, name) for name in bare))
        wrapper = min((match[1] for match in embeddings), key=len, default="")
        if wrapper or bare.keys() != tensors.keys():
            _warn(f"{wrapper or _COMPILED!r} in tensors' names")
        return {n.removeprefix(wrapper).removeprefix(self.prefix): x for n, x in bare.items()}

    def one_embedding(self, tensors: Tensors) -> dict[str, Tensor]:
        """The tensors with a single embedding, under its first name; the head is kept only if it differs, and so is the
        encoder's where both stacks may have one of their own."""
        first, head = self.embedding[0], self.embedding[-1]
        is_shared = first == _SHARED and {_ENCODER, _DECODER} <= tensors.keys()
        if is_shared and not equal(tensors[_ENCODER], tensors[_DECODER]):
            unread = (_SHARED, _ENCODER)
            others = {name: x for name, x in tensors.items() if name not in unread}
            return {_ENCODER: tensors[_ENCODER]} | self.one_embedding(others)
        copies = [name for name in self.embedding if name in tensors]
        if not copies:
            raise InputError(f"the checkpoint has no {first}: not a {self.family}-type model")
        embedding = tensors[copies[0]]
        different = [name for name in copies[1:] if not equal(embedding, tensors[name])]
        if different not in ([], [head]):
            fault = f"{different[0]} and {copies[0]} differ"
            raise InputError(f"{fault}: not a {self.family}-type model")
        used = {first: embedding} | {name: tensors[name] for name in different}
        return used | {name: tensor for name, tensor in tensors.items() if name not in copies}

    def rename(self, tensors: Tensors) -> dict[str, Tensor]:
        """All of a checkpoint's tensors under our names, each once: aliases are dropped."""
        return self.renamed(self.one_embedding(self.bare(tensors)))


def _warn(what: str) -> None:
    warnings.warn(f"warning: left out {shorten(what, 300, placeholder=' ...')}", stacklevel=2)


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have equal contents, wherever they are stored."""
    if a == b:  # the same place in the same file
        return True
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return all(x.tobytes() == y.tobytes() for x, y in zip(a.blocks(), b.blocks(), strict=True))
