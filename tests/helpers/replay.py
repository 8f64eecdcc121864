"""Texts replayed: what of them the draft model knew, with scripted costs in the place of models."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from speculative.batch import decode
from speculative.draft import Candidate, Plan
from speculative.lookup import UNBOUNDED
from speculative.row import Waiting
from speculative.schedule import Schedule

# For each of 24 held-out texts of a kind, decoded greedily by the embedded pair's target: a letter for each
# token. A capital where the draft model's most probable next token is the text's; which letter, by the
# probability that the draft model gives it: SURE. A draft from a place passes up to the next small letter.
KNOWN = {
    "number": """
CaGaaJ bICGcBJcJ AbcCJba aEcGaJbJ DFbJAIaIAJbJ aCIGbaJBJ bJcDBbJCJ aFbbG EaEbaJ eJJDBDBJbGCJ eF CCCIJBDD
EdBJbIBJ BdCJEJIFbJFJ DCIJDI cbJEdJBdCICGcJ bEEIcJbJdG bCE aECJaFBJ DFaECIa cC baGBaJ dIFJ dD
""".split(),
    "sentence": """
JIJJGEIIcFFGJ HIJJJdIIIbHJFHGCGIJJJJJ JJJJJJIIJJAJJIJEJAGJIGJJ GEIIJEIGCJCHJJHJJIJJJ JIIJHFJFIGGDGCHIJIIGJJ
IEIHGFBcIJJJJ IFEGEFIJEHJJJJJJJ JHGIHJGJCHFIJJJJJJJJJJ JJJJJJJHGJCGJIIFEGJJJIJFJ JFGEIFJJFGGBIJJGJJ
HGGIIIEGDCIJJJ HHGFJIEJJDEJFJJIGJJ HJEIHJGIGJEGGJJJIJHIJJ GHJIGJGGEHFFJIJJHJJ JJJIIJIFIIJIJFECEJJHHGJ
JFIIEGFHFBJIJJJJ EGIHIIHJHHcJJJGJJIJJ JJJIJJJFJGGFBEDJJHJJ JJHHGIFEJEGFIJJ GCJCJFIHEaIIJIJJJJ
JJIJFBJIJJJIJGCEJJJHJJJIJJ GIHHJGCJJJJJJJ JIJIHJHJGEIJJJJIIIIJJ JHGIEJFCEGEJJJHJJ
""".split(),
    "repair": """
FDDccEDeIJJJFceFEBCJIJJ JIaBHDcCCFJJJIDbCEcFBcCJ GFEdJDHdfcCHJGbGDHEFbJIJJ JDBGGIJJJJJ FcIIGGAIJJJJ
JCIFCCGIecACJHIIDEcDGCCbCJJFJG FAeHbaCJJIJJDbbBEGCBEJGJJ JIHCIIFcIJIJJ IFJJEGFJJJJJ JJccIeCDBcJJcAcbCAEJJJG
JJEEGGIebFIF JEIIHEFFJJJJ JEFGgICFIJJJJ IdbFJGGeFIJJJJ IGGIFFFIJIJ ddIbedeGedGFCbFJHJI JBCDbEDaEJIJFCaEBBcBcJ
JIEHGbGGEGJJ GJBfHJCcecJJJJCCICEFI BbeCbGJJJFBcEBBDEJIJI ICbBFDFDDIJJJJDdbDDEHdEJGJJ JEdCCHJGDccHJHJJfFbcbbbBfI
IEFGFDJJJIJJ JJcGHGDaGJJJJ
""".split(),
}
SURE = dict(
    zip("abcdefghij", (0.2, 0.4, 0.6, 0.75, 0.85, 0.93, 0.965, 0.985, 0.994, 0.9985), strict=True)
)


def texts(kinds: Sequence[str], number: int, seed: int) -> list[str]:
    """So many of these kinds, in any order."""
    known = [text for kind in kinds for text in KNOWN[kind]]
    random.Random(seed).shuffle(known)
    return known[:number]


@dataclass(frozen=True)
class Machine:
    """What things cost, in steps of one row."""

    products: Sequence[tuple[int, float]]  # a target call by its tokens, of all rows together
    draft: float  # a token of the draft model, for one row
    reading: float = (
        0.0  # a prompt for the target; for the draft model as much less as its token is
    )

    def call(self, tokens: int) -> float:
        return float(np.interp(tokens, *zip(*self.products, strict=True)))

    def step(self, rows: int, drafted: int) -> float:
        return self.call(rows * (1 + drafted)) + drafted * self.draft * self.call(rows)


def drafted(plan: Plan, confidence: Callable[[int, int], float], late: int = 0) -> Plan:
    """What a draft model makes of a plan whose confidence in the i-th token of row b is confidence(b, i), known
    when so many tokens more have been drafted. Once it has strayed it is as sure as it would be otherwise."""
    if not plan.stop:
        return plan
    lengths, known = plan.lengths, np.zeros((len(plan.lengths), 0))
    most = drafted = int(lengths.max())
    for i in range(1, most):
        if i > late:
            last = [confidence(b, i - late - 1) * (i - late <= n) for b, n in enumerate(lengths)]
            known = np.column_stack([known, last])
            lengths = np.where(known[:, -1] < 0, i - late, lengths)
            if plan.stop(known, i):
                drafted = i
                break
    return plan.as_drafted(np.minimum(lengths, drafted), known)


@dataclass(eq=False)
class Text:
    """A row: how far it is, and what `decode` wants to know of it."""

    known: str
    at: int = 0
    fared: str = "new"
    unread: int = 20
    finish_reason: str | None = None

    def sure(self, at: int) -> float:
        """The draft model's confidence in its next token; negative where that rightly ends the text."""
        if at >= len(self.known):
            return 0.5
        sure = SURE[self.known[at].lower()]
        return -sure if at == len(self.known) - 1 and self.known[at].isupper() else sure


class Replay:
    """A batch of texts, for `decode`. `seconds` is what it took."""

    PROMPT = 20  # tokens

    def __init__(
        self,
        machine: Machine,
        schedule: Schedule,
        seed: int = 0,
        late: int = 0,
        noise: random.Random | None = None,
    ):
        """late: as for `drafted`. noise: of measurements, by default one from `seed`."""
        self.machine, self.schedule, self.rows = machine, schedule, []
        self.seconds, self._noise = 0.0, noise or random.Random(seed)
        self.late = late

    def admit(self, fresh: Sequence[Text]) -> None:
        free = [b for b, row in enumerate(self.rows) if row.finish_reason]
        for row in fresh:
            if free:
                self.rows[free.pop(0)] = row
            else:
                self.rows.append(row)
        self.seconds += self.machine.reading * len(fresh)

    def select(self, indices: Sequence[int]) -> None:
        self.rows = [self.rows[b] for b in indices]
        self.seconds += 0.03 * len(self.rows)

    def advance(self) -> list[Text]:
        live = [row for row in self.rows if not row.finish_reason]
        candidates = [
            []
            if row.finish_reason
            else [Candidate(f"model, {row.fared}", UNBOUNDED, unread=row.unread)]
            for row in self.rows
        ]
        plan = self.schedule.plan(
            candidates, [-1 if row.finish_reason else 100 for row in self.rows]
        )
        plan = drafted(plan, lambda b, i: self.rows[b].sure(self.rows[b].at + i), self.late)
        lengths = plan.lengths.tolist()
        accepted = [self._decode(row, k) for row, k in zip(self.rows, lengths, strict=True)]
        done = [row for row in live if row.finish_reason]
        reading = self.machine.reading * self.machine.draft * plan.unread / self.PROMPT
        seconds = self.machine.step(len(self.rows), max(lengths))
        self.seconds += seconds + reading
        # What is measured is off by some per cent, and now and then by far.
        off = 1 + abs(self._noise.gauss(0, 0.03)) + (self._noise.random() < 0.02)
        ended = [len(row.known) for row in done]
        self.schedule.observe(plan, accepted, seconds * off, reading, ended)
        return done

    def _decode(self, row: Text, drafted: int) -> int:
        if row.finish_reason:
            return 0
        passed = 0
        while row.known[row.at + passed : row.at + passed + 1].isupper() and passed < drafted:
            passed += 1
        row.at += passed + 1
        if drafted:
            row.unread = 0
            row.fared = "none" if not passed else "whole" if passed == drafted else "part"
        if row.at >= len(row.known):
            row.finish_reason = "stop"
        return passed


def rate(
    machine: Machine,
    schedule: Schedule,
    known: Sequence[str],
    rows: int = 1,
    seed: int = 0,
    late: int = 0,
    noise: random.Random | None = None,
) -> float:
    """Tokens per second, so many side by side."""
    replay = Replay(machine, schedule, seed, late, noise)
    list(decode(replay, Waiting([Text(text) for text in known]), rows))
    return sum(map(len, known)) / replay.seconds
