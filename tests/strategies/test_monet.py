"""MONeT's program against its own rules by enumeration, and its schedules against the evaluator."""

from itertools import chain as joined
from itertools import combinations, product

import numpy as np
import pytest
from bruteforce import least_cost
from graphs import chain, operator_graphs, paper_chain, resnet, training_operators
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import InfeasibleBudgetError, StrategyError
from checkmate_tf.graph import BACKWARD, Graph
from checkmate_tf.operators import Implementation, OperatorGraph
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.solvers import cpsat, mathopt
from checkmate_tf.strategies import SolveOptions, solve
from checkmate_tf.strategies.monet import monet
from checkmate_tf.strategies.monet.formulation import monet_program, split

EXACT = SolveOptions(time_limit=120.0, gap=0.0)  # it ends with the proof


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
        way = self.ways[u]
        over = max(0, -way.workspace) if self.other[u] else int(self.operators.graph.held[u])
        own = [p for p in way.inputs if self.sure[p] <= {u} and (not self.other[u] or self.sizes[p] >= over)]
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


def budget_of(operators, cut):
    budget = keep_all(operators.choose({}).graph).peak_bytes - cut
    assume(budget > operators.graph.constant_bytes)
    return budget


def scheduled(operators, program, solution):
    """The schedule of a solution, and the point that it gives."""
    choice, order = program.unpack(solution.x)
    chosen = operators.choose(choice)
    place = {int(node): at for at, node in enumerate(chosen.nodes)}
    return Schedule(chosen.graph, [place[i] for i in order if i in place]), program.pack(choice, order)


# -- the program -------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.one_of(operator_graphs(5), training_operators(3, 2)), st.integers(0, 3))
def test_the_optimum_is_that_of_the_rules(operators, cut):
    assume(usable(operators) and int(np.argmax(operators.graph.kinds == BACKWARD)) <= 3)
    budget = budget_of(operators, cut)
    expected = by_enumeration(operators, budget)
    program = monet_program(operators, budget)
    cost, solution = solved(program)
    assert cost == pytest.approx(expected, abs=1e-6)
    if solution.x is not None:
        schedule, point = scheduled(operators, program, solution)
        assert schedule.peak_bytes <= budget
        assert schedule.cost <= expected + 1e-6
        assert point is not None
        assert program.milp.objective @ point * program.unit_cost == pytest.approx(expected, abs=1e-6)


@settings(max_examples=10)
@given(training_operators(3, 2), st.integers(0, 3))
def test_memory_between_computations_needs_no_rows(operators, cut):
    """(13) of the paper rules out nothing."""
    budget = budget_of(operators, cut)
    assert by_enumeration(operators, budget, stored_too=True) == by_enumeration(operators, budget)


@settings(max_examples=60)
@given(training_operators(), st.integers(0, 3))
def test_schedules_fit_and_are_never_below_the_true_optimum(operators, cut):
    budget = budget_of(operators, cut)
    program = monet_program(operators, budget)
    cost, solution = solved(program)
    assume(solution.x is not None)
    schedule, point = scheduled(operators, program, solution)
    assert schedule.peak_bytes <= budget
    assert schedule.cost <= cost + 1e-6
    assert point is not None
    ways = product(*(range(len(operators.ways(u))) for u in range(len(operators))))
    true = min(least_cost(operators.choose(dict(enumerate(choice))).graph, budget) for choice in ways)
    late = set(operators.choose(program.unpack(solution.x)[0]).nodes) & operators.optional
    if not late:  # an encoding may come after its place in the order of the graph, which brute force keeps to
        assert schedule.cost >= true - 1e-9


def test_a_chain_by_hand():
    """Checkmate's chain of 3 layers: v0 v1 v2, loss, then gradients that read v2, v1, v0 and the one before.

    In 3 units the values that the first gradient reads are counted still while the next recomputes before them (the
    last sum of equation 3), so they are not kept from the forward pass, and all is computed again for each.
    """
    operators = OperatorGraph(paper_chain(3), {})
    assert split(operators.graph) == 4
    found = [solved(monet_program(operators, budget))[0] for budget in (5, 4, 3)]
    assert found == pytest.approx([7.0, 8.0, 14.0])
    assert [least_cost(operators.graph, budget) for budget in (5, 4, 3)] == [7.0, 8.0, 10.0]
    assert solved(monet_program(operators, 2))[0] == least_cost(operators.graph, 2) == np.inf


def in_place(reads):
    """linear, relu in the linear's memory, loss, their gradients; that of the ReLU reads its input or its value."""
    graph = Graph(
        "in place", ["linear", "relu", "loss", "g relu", "g linear"], np.array([0, 0, 1, 2, 2]), np.ones(5),
        np.array([8, 8, 1, 1, 1]), [[], [0], [1], [reads, 2], [3]],
    )  # fmt: skip
    return OperatorGraph(graph, {1: [Implementation("in place", 1.0, (0,), -8)]})


def test_in_place_where_nobody_else_reads_the_input():
    def least(operators):
        return next(m for m in range(1, 40) if solved(monet_program(operators, m))[0] < np.inf)

    assert least(in_place(1)) == 10  # the ReLU's value, the loss, the gradient
    assert monet(in_place(1), 10, EXACT).chosen.choice == {1: 1}
    assert least(OperatorGraph(in_place(1).graph, {})) == 16  # the linear's value beside the ReLU's
    assert least(in_place(0)) == 16  # the gradient reads it


def test_sizes_are_those_of_the_formulas():
    """2 forward nodes (one of them the output), 1 backward: s twice and r once for one, and U; no way is chosen."""
    graph = Graph("small", list("abc"), np.array([0, 1, 2]), np.ones(3), np.ones(3), [[], [0], [0, 1]])
    program = monet_program(OperatorGraph(graph, {}), 3)
    assert program.statistics["forward"] == 2
    assert program.statistics["variables"] == 1 + 2 * 2 + 2 + 2
    assert program.statistics["constraints"] == program.milp.matrix.shape[0]


@pytest.mark.parametrize("budget", [4, 5])
def test_cp_sat_agrees(budget):
    operators = OperatorGraph(paper_chain(3), {5: [Implementation("dear", 3.0, (3,))]})
    program = monet_program(operators, budget, integral=True)
    found = cpsat.solve(program.milp, 30.0)
    assert found.objective * program.unit_cost == pytest.approx(solved(monet_program(operators, budget))[0])


def test_orders_that_the_program_does_not_have():
    program = monet_program(OperatorGraph(paper_chain(3), {}), 7)
    assert program.pack({}, range(7)) is not None
    assert program.pack({}, [0, 1, 2, 3, 4, 4, 5, 6]) is None  # a gradient twice
    assert program.pack({}, [0, 1, 2, 3, 4, 5, 0, 0, 6]) is None  # a value twice in a stage
    assert monet_program(OperatorGraph(paper_chain(3), {}), 4).pack({}, range(7)) is None  # over the budget


# -- the strategies ----------------------------------------------------------------------------------------------------


def test_implementations_and_recomputation_at_once():
    graph = paper_chain(4)
    reads = {u: [Implementation("without", 1.5, (u - 1,))] for u in range(5, 9)}
    operators = OperatorGraph(graph, reads)
    budget = keep_all(graph).peak_bytes - 2
    found = monet(operators, budget, EXACT)
    assert found.status == "optimal"
    assert found.schedule.cost == pytest.approx(found.bound) == pytest.approx(graph.base_cost + 1.0)
    assert found.overhead == pytest.approx(1.0 / graph.base_cost)
    assert len(found.chosen.choice) == 2  # of three forward values beside the loss and its gradient, one fits
    assert found.schedule.peak_bytes <= budget
    assert found.schedule.cost < monet(OperatorGraph(graph, {}), budget, EXACT).schedule.cost


@pytest.mark.long
def test_ways_that_do_not_give_the_same_bits_are_taken_only_if_asked_for():
    graph = paper_chain(4)
    error = "equal but for rounding"
    ways = {u: [Implementation("rough", 0.5, (u - 1,), 0, error), Implementation("exact", 1.5, (u - 1,))]
            for u in range(5, 9)}  # fmt: skip
    operators = OperatorGraph(graph, ways)
    budget = keep_all(graph).peak_bytes - 2
    exact, rough = monet(operators, budget, EXACT), monet(operators, budget, EXACT, inexact=True)
    assert exact.chosen.choice and set(exact.chosen.choice.values()) == {2}
    assert exact.schedule.cost == monet(operators.exact(), budget, EXACT).schedule.cost > rough.schedule.cost
    assert set(rough.chosen.choice.values()) == {1}
    assert list(exact.chosen.graph.costs).count(1.5) == len(exact.chosen.choice)


def test_monet_noop_is_a_strategy():
    graph = resnet(4)
    budget = int(0.8 * keep_all(graph).peak_bytes)
    schedule = solve(graph, budget, "monet-noop", EXACT)
    assert (schedule.strategy, schedule.status, schedule.budget_bytes) == ("monet-noop", "feasible", budget)
    assert schedule.peak_bytes <= budget
    assert schedule.lower_bound == graph.base_cost < schedule.cost
    assert schedule.cost == pytest.approx(solved(monet_program(OperatorGraph(graph, {}), budget))[0])


@pytest.mark.long
def test_a_budget_that_the_program_does_not_reach():
    graph = chain(4)
    with pytest.raises(InfeasibleBudgetError, match="counts more memory than is needed, has no solution") as caught:
        monet(OperatorGraph(graph, {}), 3, EXACT)
    assert not caught.value.proven
    assert caught.value.minimum_bytes > 3
    with pytest.raises(InfeasibleBudgetError, match="least that any schedule of this model needs") as caught:
        solve(graph, 2, "monet-noop", EXACT)
    assert caught.value.proven
    with pytest.raises(InfeasibleBudgetError):
        monet(OperatorGraph(chain(4, constant_bytes=100), {}), 100, EXACT)


@pytest.mark.parametrize(("kinds", "missing"), [([0, 0, 1], "backward"), ([2, 2, 2], "forward")])
def test_graphs_without_a_forward_or_a_backward_pass(kinds, missing):
    graph = Graph("odd", list("abc"), np.array(kinds), np.ones(3), np.ones(3), [[], [0], [1]])
    for ask in (lambda: solve(graph, 2, "monet-noop"), lambda: monet(OperatorGraph(graph, {}), 2)):
        with pytest.raises(StrategyError, match=f"graph 'odd' has no {missing} nodes.*strategy=\"checkmate\""):
            ask()


def test_an_unknown_solver_is_named():
    with pytest.raises(StrategyError, match="solver 'cplex' is unknown"):
        monet(OperatorGraph(chain(3), {}), 5, SolveOptions(solver="cplex"))


def test_progress_is_told():
    calls = []
    options = SolveOptions(time_limit=60.0, gap=0.0, progress=lambda *call: calls.append(call))
    found = monet(OperatorGraph(paper_chain(4), {}), 5, options)
    assert calls
    assert all(len(call) == 4 for call in calls)
    assert found.schedule.cost >= found.bound - 1e-6
