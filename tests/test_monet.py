"""MONeT's program against its own rules by enumeration, and its schedules against the evaluator."""

from itertools import chain as joined
from itertools import combinations, product

import numpy as np
import pytest
from graphs import operator_graphs
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import BACKWARD
from checkmate_tf.schedule import keep_all
from checkmate_tf.solvers import mathopt
from checkmate_tf.strategies import SolveOptions
from checkmate_tf.strategies.monet_formulation import monet_program

QUICK = SolveOptions(time_limit=20.0, gap=0.0)


def subsets(values):
    values = sorted(values)
    return [set(found) for found in joined.from_iterable(combinations(values, m) for m in range(len(values) + 1))]


class Rules:
    """The program's rules (sections 3 and 4, appendices B and C) for one choice of ways, on sets.

    `used` are the optional forward nodes that may be computed.
    """

    def __init__(self, operators, choice, used, budget, stored_too=False):
        self.operators, graph = operators, operators.graph
        self.n, self.N = len(graph), int(np.argmax(graph.kinds == BACKWARD))
        self.sizes, self.until = graph.sizes.tolist(), graph.recompute_until.tolist()
        self.ways = [operators.ways(u)[choice[u]] for u in range(self.n)]
        self.other, self.room, self.stored_too = choice, budget - graph.constant_bytes, stored_too
        forward = set(range(self.N))
        self.computed = (forward - operators.optional) | used
        self.readers = [
            [u for u in range(self.n) if any(i in w.inputs for w in operators.ways(u))] for i in range(self.n)
        ]
        self.sure = [
            {u for u in row if u not in operators.optional and all(i in w.inputs for w in operators.ways(u))}
            for i, row in enumerate(self.readers)
        ]
        self.outputs = {i for i in range(self.n) if not self.sure[i] and i not in operators.optional}

    def useful(self, i, k):
        return any(
            u >= self.N + k if u >= self.N
            else any(self.N + m < self.until[u] and self.useful(u, m) for m in range(k, self.n - self.N))
            for u in self.readers[i]
        )  # fmt: skip

    def again(self, k):
        return {i for i in self.computed - self.outputs if self.N + k < self.until[i] and self.useful(i, k)}

    def workspace(self, u, after):
        way, own = self.ways[u], [p for p in self.ways[u].inputs if self.sure[p] <= {u}]
        over = max(0, -way.workspace) if self.other[u] else int(self.operators.graph.held[u])
        if self.other[u] and not own:
            return max(0, way.workspace)
        taken = [p for p in own if self.other[u] or self.operators.default_readers[p] == (u,)]
        there = self.computed | set(range(self.N, self.n))
        lost = any(p in after for p in own) or any(
            p in self.ways[v].inputs and v in there for p in taken for v in range(self.n) if v != u
        )
        return way.workspace + over * lost

    def total(self, values):
        return sum(self.sizes[i] for i in values)

    def forward(self, first, kept):
        """Cost of the forward pass, or infinity; equation (1)."""
        if not kept <= first or not self.outputs & first <= kept:
            return np.inf
        for i in sorted(first):
            local = {j for j in first if j < i and any(t >= i and j in self.ways[t].inputs for t in first)}
            needs = (
                self.total({j for j in first if j < i and j in local | kept}) + self.sizes[i] + self.workspace(i, kept)
            )
            if not set(self.ways[i].inputs) <= first or needs > self.room:
                return np.inf
        return sum(self.ways[i].cost for i in first)

    def stage(self, k, before, made, kept, after):
        """Cost of stage k, or infinity; equations (7), (8), (10), (12), and (13) if asked for."""
        N, sizes = self.N, self.sizes
        there, wanted = kept | made, {i for i in self.ways[N + k].inputs if i < N}
        reads = wanted.union(*(self.ways[i].inputs for i in made))
        if not made <= self.again(k) or not reads <= there or not kept <= before | made:
            return np.inf
        if not self.outputs & set(range(N)) <= kept:
            return np.inf
        gradients = self.total(
            y for y in range(N, N + k) if y in self.outputs or any(u >= N + k for u in self.readers[y])
        )
        if gradients + sizes[N + k] + self.workspace(N + k, after) + self.total(kept | wanted) > self.room:
            return np.inf
        for i in made:
            # In the paper any later forward node may be computed again: all of those that may be in some choice.
            possible = {t for t in range(N) if t not in self.outputs and N + k < self.until[t] and self.useful(t, k)}
            local = {j for j in range(i) if any(t >= i and t in possible for t in self.readers[j])}
            held = local | {j for j in kept | wanted if j < i} | {j for j in before if j > i}
            if gradients + sizes[i] + self.workspace(i, kept) + self.total(held) > self.room:
                return np.inf
        for i in range(N) if self.stored_too else ():
            held = {j for j in kept | wanted if j <= i} | {j for j in before if j > i}
            if gradients + self.total(held) > self.room:
                return np.inf
        return sum(self.ways[i].cost for i in made) + self.ways[N + k].cost

    def optimum(self):
        everything = subsets(self.computed)
        K = self.n - self.N
        best = np.inf
        start = {}
        for kept in everything:
            costs = [
                self.forward(self.computed - left, kept) for left in subsets(self.computed & self.operators.optional)
            ]
            if min(costs) < np.inf:
                start[frozenset(kept)] = min(costs)
        # What outlives backward k is what the next stage keeps: a state is what was kept before, and what is now.
        states = {(before, None): cost for before, cost in start.items()}
        for k in range(K):
            following = {}
            for (before, now), cost in states.items():
                for kept in [set(now)] if now is not None else everything:
                    for made in subsets(self.again(k)):
                        for after in everything if k + 1 < K else [set()]:
                            step = cost + self.stage(k, set(before), made, kept, after)
                            state = (frozenset(kept), frozenset(after))
                            if step < following.get(state, np.inf):
                                following[state] = step
            states = following
        return min(states.values(), default=best)


def by_enumeration(operators, budget, stored_too=False):
    optional = {i for i in operators.optional if operators.graph.kinds[i] != BACKWARD}
    best = np.inf
    for ways in product(*(range(len(operators.ways(u))) for u in range(len(operators)))):
        for used in subsets(optional):
            best = min(best, Rules(operators, ways, used, budget, stored_too).optimum())
    return best


def usable(operators):
    kinds = operators.graph.kinds
    return kinds[0] != BACKWARD and (kinds == BACKWARD).any()


def solved(program):
    solution = mathopt.solve(program.milp, "highs", 30.0)
    return solution.objective * program.unit_cost, solution


@settings(max_examples=40)
@given(operator_graphs(5), st.integers(0, 4))
def test_the_optimum_is_that_of_the_rules(operators, cut):
    assume(usable(operators) and int(np.argmax(operators.graph.kinds == BACKWARD)) <= 3)
    budget = keep_all(operators.choose({}).graph).peak_bytes - cut
    assume(budget > operators.graph.constant_bytes)
    expected = by_enumeration(operators, budget)
    assert solved(monet_program(operators, budget))[0] == pytest.approx(expected, abs=1e-6)
