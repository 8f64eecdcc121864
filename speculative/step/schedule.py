"""The number of tokens to draft in a step: for each row the number that it wants or, with `auto`, the fastest one.

`auto` maximises a step's expected tokens over its expected seconds (the renewal-reward theorem); docs/design.md has the
formulas. A step takes c(t) + d s seconds, where t is the longest draft to check and s the number of tokens that the draft
model drafts; c is linear between KNOTS only. Beliefs fill in what has not been seen: the first token adds a jump j to a
step, each further one b. A draft of k tokens brings h (1 - h^k) / (1 - h) (Leviathan et al. 2023, arXiv 2211.17192,
section 3.3), where h is the ratio of drafted tokens that passed, by drafter and state. Old evidence fades.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from speculative.models.contract import common_prefix
from speculative.step.draft import Candidate, Plan, Step, no_plan
from speculative.step.options import AUTO

KNOTS = (0, 1, 2, 4, 8, 16, 32, 64)  # tokens to check; no draft is longer
CHANCE = 0.7  # first guess: a drafted token's chance
WORTH = 4.0  # tokens of evidence that this guess counts for
TEXT = 32  # first guess: tokens of a text
FADING = 0.99  # the weight of evidence after a step
PATIENCE, MAX_PATIENCE = 128, 16 * 128  # steps until an unused way is tried again; they double
SAMPLE = 4  # when only trying: draft for one row in this many; again, this many tokens for one row
LOGITS = 1 << 26  # the most logits in one verification: 256 MB in float32

# Beliefs before anything is known, in plain steps, and how firm they are, in observations
ONE_ROW = (0.15, 2.0)  # each further token to check, b, and how firm that is
MORE_ROWS = (0.3, 0.5)  # the same with several rows: one more token of each
DRAFT = 0.1  # each token that the draft model drafts: d
NO_JUMP_WEIGHT = 0.7  # that the first token adds no jump j

PLAIN, COPIED, MODELLED = range(3)  # ways of a step


def _plan(
    chosen: Sequence[Candidate | None], room: Sequence[int], limits: Sequence[int], **others: Any
) -> Plan:
    """A plan to draft up to `limits` tokens of each row's candidate. others: the plan's other fields."""
    rows = zip(chosen, room, limits, strict=True)
    lengths = [max(0, min(c.max_length, left, limit)) if c else 0 for c, left, limit in rows]
    drafting = [c if n > 0 else None for c, n in zip(chosen, lengths, strict=True)]
    return Plan(drafting, np.array(lengths, np.int32), **others)


def _way(candidate: Candidate) -> int:
    return COPIED if candidate.copy else MODELLED


@dataclass
class Ratio:
    """The ratio of tries that succeeded; old evidence fades. It starts from a guess worth some evidence."""

    part: float = 0.0
    weight: float = 0.0

    def add(self, part: float, weight: float, fading: float = 1.0) -> None:
        self.part = fading * self.part + part
        self.weight = fading * self.weight + weight

    def estimate(self, guess: float, worth: float = WORTH) -> float:
        return (self.part + worth * guess) / (self.weight + worth)


class Costs:
    """The costs of steps with about this many rows, and when each way was last used."""

    def __init__(self, rows: int, like: "Costs | None" = None):
        """like: the costs with another number of rows, to start from."""
        draft = DRAFT
        token, token_weight = ONE_ROW if rows == 1 else MORE_ROWS
        jump = 0.0
        if like:
            knot_seconds, *others = like.estimate()
            draft, token, jump = (seconds / knot_seconds[0] for seconds in others)
        # The unknowns are the seconds at the knots, d, b and j. A prior row is a linear combination of them that is
        # expected to be 0.
        *knots, d, b, j = np.eye(len(KNOTS) + 3)
        # A step's seconds grow from knot to knot by b a token, and by j besides for the first.
        grows = np.diff(knots, axis=0) - np.outer(np.diff(KNOTS), b)
        grows[0] -= j
        # b, j and d are so many plain steps.
        of_token = token_weight * (b - token * knots[0])
        of_jump = NO_JUMP_WEIGHT * (j - jump * knots[0])
        of_draft = d - draft * knots[0]
        self._prior_rows = np.array([*grows, of_token, of_jump, of_draft])
        self._sums = np.zeros((3, len(d), len(d) + 1))  # by way: the normal equations
        self._sums[PLAIN, 0, [0, -1]] = 1e-9  # a plain step of a second, until one is known
        self._patience = [PATIENCE // 2] * 3
        self.tried = [False] * 3
        # Steps until a way that is not used is tried: at once if it never was.
        self.until_try = [PATIENCE // 2 if like and like.tried[way] else 0 for way in range(3)]
        self._warm = like is not None
        self.reach = 8  # the longest draft worth a guess: twice the longest that has been tried

    def add(self, checked: int, drafted: int, seconds: float, trying: bool) -> None:
        way = MODELLED if drafted else COPIED if checked else PLAIN
        if not trying:
            self._patience[way] = PATIENCE
        self.until_try = [n - 1 for n in self.until_try]
        self.until_try[way] = self._patience[way]
        if not self._warm:  # do not count the very first step; try it again
            self._warm = True
            self.until_try[way] = 0
            return
        self.tried[way] = True
        hats = [np.interp(checked, KNOTS, knot) for knot in np.eye(len(KNOTS))]
        x = np.array([*hats, drafted, 0, 0]) / max(seconds, 1e-9)
        self._sums[way] = FADING**2 * self._sums[way] + np.outer(x, [*x, 1])
        self.reach = max(self.reach, 2 * checked)

    def postpone(self, way: int) -> None:
        """Note that it is tried now; if that does not help, wait twice as long before the next try."""
        self._patience[way] = min(2 * self._patience[way], MAX_PATIENCE)
        self.until_try[way] = self._patience[way]

    def estimate(self) -> tuple[np.ndarray, float, float, float]:
        """Seconds of a step that checks as many tokens as KNOTS, of drafting one, and b and j."""
        n, sums = len(KNOTS), self._sums.sum(axis=0)
        prior = self._prior_rows * (sums[:n, :n].sum() / sums[:n, -1].sum())  # per usual step
        seconds = np.linalg.solve(sums[:, :-1] + prior.T @ prior, sums[:, -1]).clip(0)
        return np.maximum.accumulate(seconds[:n] + 1e-9), *seconds[n:].tolist()


@dataclass(frozen=True)
class Stop:
    """Decides when the draft model stops, for all rows of a step."""

    # By tokens drafted: the chance that the next must have, all rows together
    min_passes: np.ndarray
    gamma: float
    chance: float  # of a token whose confidence is not known yet
    min_tokens: int = 0  # that a row wants

    def __call__(self, confidence: np.ndarray, drafted: int) -> bool:
        """confidence: [B, n], as in `Draft`, of the first n of each row's `drafted` tokens."""
        if drafted < self.min_tokens:
            return False
        passes = (np.maximum(confidence, 0).prod(axis=1) ** self.gamma).sum()
        passes *= self.chance ** (drafted + 1 - confidence.shape[1])
        return bool(passes <= self.min_passes[min(drafted, len(self.min_passes) - 1)])


class Schedule:
    """Decides how much to draft. Keep one for a pair of models: it learns."""

    def __init__(self, vocab_size: int):
        self._vocab_size = vocab_size
        # By drafter and state
        self._chances: defaultdict[tuple[str, str], Ratio] = defaultdict(Ratio)
        self._means: defaultdict[str, Ratio] = defaultdict(Ratio)  # by drafter, over its states
        self._rejections = Ratio()  # over -log(confidence) of the tokens that were tried
        self._drafter = ""  # the draft model: see Candidate.drafter
        self._costs: dict[tuple[int, str], Costs] = {}  # by the power of two of rows, and by it
        self._prefill = Ratio()  # seconds a token
        self._texts = Ratio()  # tokens a text
        self._trying = False  # whether this step only tries a way

    def plan(
        self,
        candidates: Sequence[Sequence[Candidate]],
        room: Sequence[int],
        wanted: Sequence[int | str] | None = None,
    ) -> Plan:
        """Plan a step. candidates: each row's, likeliest first. room: how many drafted tokens each row can take; -1:
        it is finished. wanted: how many tokens to draft for each row, or AUTO; None: AUTO for all."""
        candidates = [c if r > 0 else [] for c, r in zip(candidates, room, strict=True)]
        fixed = {b: int(number) for b, number in enumerate(wanted or ()) if number != AUTO}
        if len(fixed) < len(room):
            plan = self._fastest(candidates, room)
        else:
            self._trying = False
            plan = no_plan(len(room), idle_next=True, learns=any(fixed.values()))
        if not fixed:
            return plan
        drafting = list(plan.candidates)
        limits = plan.limits.tolist()
        for b, number in fixed.items():
            drafting[b] = self._best(candidates[b], room[b], number)
            limits[b] = number
        idle_next = plan.idle_next and not any(n and drafting[b] for b, n in fixed.items())
        stop = plan.stop and replace(plan.stop, min_tokens=max(fixed.values()))
        return _plan(drafting, room, limits, learns=plan.learns, stop=stop, idle_next=idle_next)

    def _best(self, candidates: Sequence[Candidate], room: int, number: int) -> Candidate | None:
        """The likeliest copy or the draft model: what promises the most tokens a second in drafts of this number, at the
        costs believed at first, so that it does not depend on the machine."""

        def rate(candidate: Candidate) -> float:
            n = min(number, candidate.max_length, KNOTS[-1])
            tokens = self._brings(candidate, room, np.arange(n + 1), 0.0)[-1]
            cost = ONE_ROW[0] + (0.0 if candidate.copy else DRAFT)
            return (1 + tokens) / (1 + n * cost)

        copies = [candidate for candidate in candidates if candidate.copy]
        others = [candidate for candidate in candidates if not candidate.copy]
        return max(copies[:1] + others, key=rate, default=None)

    def _fastest(self, candidates: Sequence[Sequence[Candidate]], room: Sequence[int]) -> Plan:
        rows, live = len(room), sum(r >= 0 for r in room)
        if not any(candidates):
            return no_plan(rows, idle_next=True, learns=True)
        models = (c.drafter for of_row in candidates for c in of_row if not c.copy)
        self._drafter = next(models, self._drafter)
        costs = self._costs_for(rows)
        offered = {PLAIN, *(_way(c) for of_row in candidates for c in of_row)}
        due = [way for way in sorted(offered) if costs.until_try[way] <= 0]
        self._trying = bool(due)
        if due:
            costs.postpone(due[0])
            return self._try(due[0], candidates, room, costs)
        seconds, d, _, _ = costs.estimate()
        longest = max(0, min(KNOTS[-1], costs.reach, LOGITS // (rows * self._vocab_size) - 1))
        t = np.arange(longest + 1)
        call = np.interp(t, KNOTS, seconds)
        k = 0
        rate = live / call[0]
        best = list[Candidate | None]([None] * rows)
        for way in sorted(offered - {PLAIN}):
            brought = []
            for of_row, r in zip(candidates, room, strict=True):
                usable = [c for c in of_row if _way(c) <= way]
                tokens = ((self._brings(c, r, t, rate), c) for c in usable)
                brought.append([(0.0 * t, None), *tokens])
            gained = sum(np.maximum.reduce([tokens for tokens, _ in of_row]) for of_row in brought)
            rates = (live + gained) / (call + d * (way == MODELLED) * t)
            if rates.max() > rate:
                k = int(rates.argmax())
                rate = rates.max()
                best = [max(of_row, key=lambda each: each[0][k])[1] for of_row in brought]
        limits = [k if c is None or c.copy else longest for c in best]
        plan = _plan(best, room, limits, learns=True)
        drafting = [*zip(plan.candidates, plan.limits.tolist(), strict=True)]
        if any(c and not c.copy for c, _ in drafting):
            copied = max((n for c, n in drafting if c and c.copy), default=0)
            mean = self._means[self._drafter].estimate(CHANCE)
            wide = np.maximum(call, call[copied]) + d * t  # copies of other rows are checked anyway
            more = t - t[:, None]  # by tokens drafted and tokens at the end
            extra_seconds = wide - wide[:, None]
            expected_tokens = np.cumsum(mean**t)[np.maximum(more, 1) - 1]
            price = np.where(more > 0, extra_seconds / expected_tokens, np.inf)
            min_passes = rate * price.min(axis=1)
            return replace(plan, stop=Stop(min_passes, self._rejections.estimate(1.0), mean))
        foreseen = COPIED not in offered and all(costs.until_try[way] > 1 for way in offered)
        return replace(plan, idle_next=k == 0 and foreseen)

    def _try(self, way: int, candidates: Sequence, room: Sequence[int], costs: Costs) -> Plan:
        """Draft for one row in SAMPLE, those with the least to read."""
        each = ((b, c) for b, of_row in enumerate(candidates) for c in of_row[::-1])
        usable = {b: c for b, c in each if _way(c) == way}
        few = sorted(usable, key=lambda b: usable[b].missing)[: -(-len(room) // SAMPLE)]
        drafting = [usable[b] if b in few else None for b in range(len(room))]
        longer = len(room) == 1 and costs.tried[way]  # may more tokens pay, if one does not?
        return _plan(drafting, room, [SAMPLE if longer else 1] * len(room), learns=True)

    def _costs_for(self, rows: int) -> Costs:
        """The costs with this many rows, first guessed from the nearest number."""
        key = rows.bit_length(), self._drafter
        if key not in self._costs:
            distances = {k: (k[1] != key[1], abs(k[0] - key[0])) for k in self._costs}
            nearest = min(distances, key=distances.__getitem__, default=key)
            self._costs[key] = Costs(rows, self._costs.get(nearest))
        return self._costs[key]

    def _brings(self, candidate: Candidate, room: int, t: np.ndarray, rate: float) -> np.ndarray:
        """The number of tokens expected to pass in drafts of `t` tokens, less the cost of reading."""
        mean = self._means[candidate.drafter].estimate(CHANCE)
        h = self._chances[candidate.drafter, candidate.state].estimate(mean)
        passing = np.cumprod(np.where(t > 0, h, 1.0))  # of the t-th token and all before
        tokens = (np.cumsum(passing) - 1)[np.minimum(t, min(candidate.max_length, room))]
        left = min(room, self._texts.estimate(TEXT, 1.0))
        prefill = rate * candidate.missing * self._prefill.estimate(0.0, 1.0) / left
        return tokens - prefill * (1 + tokens) * (t > 0)

    def observe(self, step: Step, ended: Sequence[int] = ()) -> None:
        """Learn from a step, its times, how other candidates would have fared, and the lengths of texts that ended."""
        lengths = step.draft.lengths
        confidence = step.draft.confidence
        for ratio in (*self._chances.values(), *self._means.values(), self._rejections):
            ratio.add(0, 0, FADING)
        evidence = [*hindsight(step)]
        drafted = 0
        prefilled = 0
        each = zip(step.plan.candidates, lengths.tolist(), step.accepted, strict=True)
        for b, (candidate, length, passed) in enumerate(each):
            if candidate is None:
                continue
            rejected = passed < length
            evidence.append((candidate, passed, rejected))
            if candidate.copy:
                continue
            drafted = max(drafted, length)
            prefilled += candidate.missing
            if confidence is not None:
                tried = confidence[b, : passed + rejected]
                doubt = -np.log(np.maximum(abs(tried), 1e-9)).sum()
                self._rejections.add(passed < min(length, confidence.shape[1]), doubt)
        for candidate, passed, rejected in evidence:
            tried = passed + rejected
            self._chances[candidate.drafter, candidate.state].add(passed, tried)
            self._means[candidate.drafter].add(passed, tried)
        if prefilled:
            self._prefill.add(step.draft.prefill_seconds, prefilled, FADING)
        for tokens in ended:
            self._texts.add(tokens, 1, FADING)
        self._costs_for(len(lengths)).add(int(lengths.max()), drafted, step.seconds, self._trying)


def hindsight(step: Step) -> Iterator[tuple[Candidate, int, bool]]:
    """Copies that were not drafted: how many of their tokens the text gained, and whether a different one followed."""
    rows = zip(step.plan.candidates, step.offered, step.gained, strict=False)
    for drafted, candidates, gained in rows:
        for candidate in candidates:
            if candidate.copy and candidate is not drafted:
                tokens = candidate.copy(min(len(gained), candidate.max_length))
                passed = len(common_prefix([tokens, gained]))
                yield candidate, passed, passed < len(tokens)
