"""Schedules for what the allocator will take: found by the real solver and variants, on made-up memories."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cases import program_of_case
from graphs import resnet, transformer, unet
from memories import memory_of
from pages import paged_graph

from checkmate_tf.allocator.memory import Placed
from checkmate_tf.device.measure import Device
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.fit import finding, solving
from checkmate_tf.fit.finding import Finder
from checkmate_tf.fit.job import Job, Ledger, Subject
from checkmate_tf.fit.options import PlanOptions
from checkmate_tf.fit.policy import POLICY
from checkmate_tf.fit.state import Found
from checkmate_tf.graph import Graph
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies.ordering.links import links
from checkmate_tf.strategies.ordering.ready import when_ready
from checkmate_tf.strategies.search.minimum_budget import proven_minimum

LIMIT = 1 << 34
GRAPHS = {"transformer": transformer(2), "unet": unet(2), "resnet": resnet(8)}
MEMORIES = {name: memory_of(graph, LIMIT) for name, graph in GRAPHS.items()}
PLAIN = {name: MEMORIES[name].placed(keep_all(graph).sequence).peak_bytes for name, graph in GRAPHS.items()}


def finder_of(name, *, memory=True, budget=None, **options):
    given = {"cache": False, "time_limit": 6.0, "gap": 0.05} | options
    device = Device("CPU:0", LIMIT, measurable=True)
    made = MEMORIES[name] if memory else None
    job = Job(Subject(None, GRAPHS[name]), budget or PLAIN[name], device, PlanOptions(**given), memory=made)
    return Finder(job, Ledger())


@pytest.fixture
def asked(monkeypatch):
    """Targets that the solver was asked for; not once more where it was asked for the order traced, too."""
    targets, solve = [], finding.solve_once

    def counted(graph, target, options, ledger):
        if options.order == "free":
            targets.append(target)
        return solve(graph, target, options, ledger)

    monkeypatch.setattr(finding, "solve_once", counted)
    return targets


@pytest.mark.parametrize("name", GRAPHS)
def test_the_cheapest_that_is_known_to_fit_is_found(name, asked):
    finder = finder_of(name)
    for share in (0.9, 0.75):
        target = int(share * PLAIN[name])
        found = finder.find(target, strict=True)
        assert isinstance(found, Found)
        assert found.placed == MEMORIES[name].placed(found.schedule.sequence)
        assert found.predicted_bytes == found.placed.peak_bytes <= target
        fitting = [k.cost for k in finder.known.values() if k.placed.peak_bytes <= target]
        assert found.schedule.cost == pytest.approx(min(fitting)) and min(fitting) < 1.6 * GRAPHS[name].base_cost
        assert found.schedule.overhead > 0
    assert len(asked) <= 4


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("strict", [False, True])
def test_no_solver_is_asked_where_the_plain_step_fits(name, strict, asked):
    found = finder_of(name, budget=2 * PLAIN[name]).find(2 * PLAIN[name], strict=strict)
    assert found.schedule.overhead == 0 and not asked


@pytest.mark.long(only=("unet-0.5", "resnet-0.5", "resnet-0.6"))
@pytest.mark.parametrize("share", [0.5, 0.6, 0.7, 0.8, 0.9, 0.97])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_solver_is_asked_at_most_three_times_for_a_question(name, share, asked):
    finder = finder_of(name)
    target = int(share * PLAIN[name])
    first = finder.find(target, strict=True)
    assert 1 <= len(asked) <= 3 and len(set(asked)) == len(asked)
    del asked[:]
    again = finder.find(target, strict=True)
    assert len(asked) <= 2
    if isinstance(first, Found):
        assert again.schedule.cost <= first.schedule.cost * (1 + 1e-9)


@pytest.mark.long
def test_no_less_is_asked_for_than_every_schedule_needs(asked):
    finder = finder_of("unet", time_limit=2.0)
    possible = proven_minimum(finder.graph, "free")[0]
    assert isinstance(finder.find(int(0.9 * possible), strict=True), InfeasibleBudgetError)
    assert asked and min(asked) > possible - PLAIN["unet"] // finding._GRAIN


@pytest.mark.parametrize("name", GRAPHS)
def test_in_loose_order_what_is_known_is_placed_and_nothing_is_solved(name, asked):
    finder, target = finder_of(name), int(0.85 * PLAIN[name])
    strict = finder.find(target, strict=True)
    del asked[:]
    loose = finder.find(target, strict=False)
    assert not asked
    if isinstance(loose, Found):
        assert loose.placed.peak_bytes <= target and loose.schedule.cost >= strict.schedule.cost * (1 - 1e-9)
        assert loose.placed == finder.loose[loose.schedule.sequence.tobytes()]
    else:
        assert all(placed.peak_bytes > target for placed in finder.loose.values())


@pytest.mark.parametrize("looking", [1e9, 0.0], ids=["one by one", "bisected"])
@pytest.mark.parametrize("name", GRAPHS)
def test_in_loose_order_the_first_that_fits_is_found_or_with_no_time_one_that_fits(name, looking, monkeypatch):
    """What takes less in strict order need not take less out of order: here every third fits."""
    finder, target = finder_of(name), int(0.85 * PLAIN[name])
    finder.find(target, strict=True)
    fitting = finder._fitting(target)
    fits = {k.sequence.tobytes(): i % 3 == 2 for i, k in enumerate(fitting)}
    monkeypatch.setattr(finding, "_LOOKING", looking)
    monkeypatch.setattr(Finder, "_fits_loosely", lambda _, memory, known, target: fits[known.sequence.tobytes()])
    known = finder._cheapest(MEMORIES[name], target, strict=False)
    assert len(fitting) > 2
    if looking:
        assert known is fitting[2]
    else:
        assert known is None or fits[known.sequence.tobytes()]


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("seldom", ["held_up_bytes", "given_whole_bytes"])
def test_out_of_order_a_schedule_fits_the_budget_with_what_seldom_comes(seldom, more, monkeypatch):
    """A target is below the budget, and is for steps that nothing holds up, and whose chunks are as they were drawn."""
    finder = finder_of("unet")
    target, most = int(0.85 * PLAIN["unet"]), finder.job.limits.most_bytes
    placed = replace(Placed(target, target, out_of_memory=False), **{seldom: most + more - target})
    monkeypatch.setattr(finder, "_loosely", lambda memory, known: placed)
    assert finder._fits_loosely(MEMORIES["unet"], None, target) is not bool(more)


def test_what_is_proven_to_be_too_small_is_not_solved_for(monkeypatch):
    """Only the least is looked for, once, for the error to name."""
    possible = proven_minimum(GRAPHS["unet"], "free")[0]
    finder = finder_of("unet", budget=possible - 1)
    monkeypatch.setattr(solving, "POLICY", replace(POLICY, named_seconds=1.0))
    monkeypatch.setattr(finding, "solve_once", None)
    errors = [finder.find(possible - 1, strict) for strict in (True, False)]
    assert all(error.proven and error.__traceback__ is None for error in errors)
    assert "the least that any schedule of this model needs" in str(errors[0])
    placed = MEMORIES["unet"].placed(errors[0].sequence).taken_bytes
    assert errors[0].minimum_bytes == errors[1].minimum_bytes == placed >= possible
    assert list(finder.solved) == [possible]


def test_a_refusal_names_no_more_than_all_values_take_out_of_order(monkeypatch):
    """In strict order that can be more, as pieces of memory lie otherwise."""
    finder = finder_of("unet", budget=proven_minimum(GRAPHS["unet"], "free")[0] - 1)
    monkeypatch.setattr(solving, "POLICY", replace(POLICY, named_seconds=1.0))
    plain, loosely = keep_all(finder.graph), finder._loosely
    least = finder.find(finder.job.budget_bytes, strict=True).minimum_bytes

    def taking(sure_bytes):
        def placed(memory, known):
            if known.sequence.tolist() != plain.sequence.tolist():
                return loosely(memory, known)
            return Placed(sure_bytes, sure_bytes, out_of_memory=False)

        return placed

    for sure_bytes in (least - 1, least + 1):
        monkeypatch.setattr(finder, "_loosely", taking(sure_bytes))
        assert finder.find(finder.job.budget_bytes, strict=True).minimum_bytes == min(least, sure_bytes)


@pytest.mark.long(only=("transformer",))
@pytest.mark.parametrize("name", GRAPHS)
def test_an_infeasible_target_names_the_least_that_is_placed(name):
    finder, target = finder_of(name), int(0.05 * PLAIN[name])
    error = finder.find(target, strict=True)
    assert isinstance(error, InfeasibleBudgetError) and not error.proven and error.__traceback__ is None
    assert MEMORIES[name].placed(error.sequence).peak_bytes == error.minimum_bytes > target
    assert error.minimum_bytes == min(known.placed.peak_bytes for known in finder.known.values())
    least = finder.least(error, 0, strict=True)
    assert least.schedule.sequence.tolist() == list(error.sequence)
    assert least.predicted_bytes == error.minimum_bytes


def test_a_variant_claims_no_more_than_is_proved():
    finder = finder_of("transformer")
    finder.find(int(0.8 * PLAIN["transformer"]), strict=True)
    solved = [known.solved for known in finder.known.values()]
    for known in finder.known.values():
        schedule = finder._schedule(known)
        evaluated = evaluate(finder.graph, plan_from_sequence(finder.graph, known.sequence.tolist()))
        assert evaluated.peak_bytes == schedule.peak_bytes
        assert evaluated.cost == pytest.approx(schedule.cost)
        assert schedule.lower_bound <= schedule.cost
        if schedule.budget_bytes is not None:
            assert schedule.peak_bytes <= schedule.budget_bytes
        assert any(schedule is one for one in solved) or schedule.status == "feasible"


def test_where_the_search_of_orders_finds_nothing_the_graphs_order_is_asked_for(monkeypatch):
    solve, orders = finding.solve_once, []

    def only_fixed(graph, target, options, ledger):
        orders.append(options.order)
        if options.order == "free":
            raise InfeasibleBudgetError("none found", target, LIMIT, proven=False)
        return solve(graph, target, options, ledger)

    monkeypatch.setattr(finding, "solve_once", only_fixed)
    target = int(0.8 * PLAIN["resnet"])
    found = finder_of("resnet").find(target, strict=True)
    assert isinstance(found, Found) and found.predicted_bytes <= target
    assert orders[-1] == "fixed" and found.schedule.bound_order == "free"
    assert found.schedule.lower_bound <= found.schedule.cost


def test_a_retry_gets_a_share_of_the_time_that_is_left_then(monkeypatch):
    limits = []

    def slow(graph, target, options, ledger):
        limits.append(options.time_limit - ledger.solving_seconds)
        ledger.seconds["solve"] = ledger.seconds.get("solve", 0.0) + limits[-1]
        raise InfeasibleBudgetError("none found", target, LIMIT, proven=False)

    monkeypatch.setattr(finding, "solve_once", slow)
    finder = finder_of("resnet", time_limit=100.0, strategy="moccasin")
    finder._solved(1000)
    assert limits == [pytest.approx(50.0), pytest.approx(25.0)]


def test_near_what_is_proven_one_order_is_enough(monkeypatch):
    orders, solve = [], finding.solve_once

    def counted(graph, target, options, ledger):
        orders.append(options.order)
        schedule = solve(graph, target, options, ledger)
        return replace(schedule, lower_bound=schedule.cost)

    monkeypatch.setattr(finding, "solve_once", counted)
    finder_of("resnet").find(int(0.8 * PLAIN["resnet"]), strict=True)
    assert set(orders) == {"free"}


def test_schedules_of_other_strategies_are_not_varied(asked):
    finder = finder_of("transformer", strategy="linearized-greedy")
    finder.find(int(0.9 * PLAIN["transformer"]), strict=True)
    assert len(finder.known) <= 1 + len(asked)


@pytest.mark.parametrize("placed", [False, True])
def test_without_a_model_it_is_the_solver_that_is_asked(placed, monkeypatch):
    """Where the job has no memory, or the model turned out to be wrong."""
    finder = finder_of("unet", memory=not placed)
    plain = keep_all(finder.graph)
    answers = {7: plain, 3: InfeasibleBudgetError("none", 3, 5, proven=True, sequence=[0])}

    def solve(graph, target, options, ledger):
        assert graph is finder.graph and ledger is finder.ledger and options.time_limit < 6.0
        if isinstance(answers[target], Exception):
            raise answers[target]
        return answers[target]

    monkeypatch.setattr(finding, "solve_once", solve)
    found = finder.find(7, strict=False, placed=placed)
    assert found.schedule is plain and found.placed is None and not finder.known
    error = finder.find(3, strict=True, placed=placed)
    assert (error.minimum_bytes, error.proven, error.sequence) == (5, True, [0]) and error.__traceback__ is None
    seeds = []
    monkeypatch.setattr(finding, "solve_least", lambda g, e, options, ledger: seeds.append(options.seed) or plain)
    finder.least(error, 2, strict=True, placed=placed)
    assert seeds == [2]


def test_what_finds_no_room_is_not_taken():
    """A schedule that runs out of memory by the model fits no target."""
    finder = finder_of("unet")
    plain = np.arange(len(finder.graph))
    most = PLAIN["unet"]

    def placed(sequence):
        return Placed(1, 1, out_of_memory=np.array_equal(sequence, plain), limit_bytes=most // 2)

    finder.job = replace(finder.job, memory=SimpleNamespace(placed=placed))
    found = finder.find(most, strict=True)
    assert isinstance(found, Found) and not found.placed.out_of_memory


def test_another_order_is_sought_for_what_is_cheaper_and_asks_for_no_more_than_fits(monkeypatch):
    tried, squeeze = list[bytes](), finding.squeeze

    def watched(graph, sequence, taken, target, seconds, turns, seed, most_cost):
        placed, least = MEMORIES[name].placed(sequence), min((k.cost for k in finder._fitting(target)), default=np.inf)
        if turns == 1:
            assert placed.asked_bytes <= target < placed.peak_bytes and graph.costs[sequence].sum() < least
            tried.append(sequence.tobytes())
        found = squeeze(graph, sequence, taken, target, seconds, turns, seed, most_cost)
        assert graph.costs[found].sum() <= max(graph.costs[sequence].sum(), most_cost)
        return found

    monkeypatch.setattr(finding, "squeeze", watched)
    for name in ("transformer", "resnet"):
        finder = finder_of(name, time_limit=1.5)
        for share in (0.75, 0.6, 0.5):
            before = len(tried)
            finder.find(int(share * PLAIN[name]), strict=True)
            assert len(set(tried[before:])) == len(tried) - before
    assert tried


@pytest.mark.long
def test_where_nothing_fits_what_takes_least_is_made_smaller(monkeypatch):
    for name in GRAPHS:
        least = finder_of(name, time_limit=2.0).find(int(0.05 * PLAIN[name]), strict=True).minimum_bytes
        target = int(0.97 * least)
        squeezed = finder_of(name, time_limit=2.0).find(target, strict=True)
        with monkeypatch.context() as without:
            without.setattr(finding, "_SQUEEZED", 0.0)
            other = finder_of(name, time_limit=2.0).find(target, strict=True)
        if isinstance(other, InfeasibleBudgetError) and (
            isinstance(squeezed, Found) or squeezed.minimum_bytes < other.minimum_bytes
        ):
            return  # as time is short, it need not be so for each graph
    pytest.fail("nothing was made smaller")


def test_nothing_is_computed_again_once_its_variables_are_assigned():
    """Here an update comes before the end, and the first half must not be computed again after it."""
    name = "unet"
    finder, graph = finder_of(name, order="fixed"), GRAPHS[name]
    half, end = len(graph) // 2, int(0.85 * len(graph))
    finder.assigned = {k: {end} for k in range(half)}
    finder.find(int(0.8 * PLAIN[name]), strict=True)
    assert len(finder.known) > 1 and any(len(known.sequence) > len(graph) for known in finder.known.values())
    for known in finder.known.values():
        sequence = known.sequence.tolist()
        assert min(sequence[sequence.index(end) :]) >= half


@pytest.mark.parametrize("memory", [True, False])
def test_what_has_no_gate_is_where_it_is_ready(memory):
    """In all that is found, with the allocator's model or without."""
    name = "unet"
    finder, graph = finder_of(name, memory=memory, order="fixed"), GRAPHS[name]
    finder.ungated = np.random.default_rng(0).random(len(graph)) < 0.3
    found = finder.find(int(0.8 * PLAIN[name]), strict=True)
    assert isinstance(found, Found)
    sequences = [known.sequence for known in finder.known.values()] + [found.schedule.sequence]
    assert any(len(sequence) > len(graph) for sequence in sequences)
    for sequence in sequences:
        assert when_ready(graph, links(graph), sequence, finder.ungated) is sequence
    for known in finder.known.values():
        assert known.placed == MEMORIES[name].placed(known.sequence)


def test_what_was_proved_of_a_solved_schedule_holds_where_nodes_only_moved():
    """Its cost and its budget are the same."""
    edges, ones = [[], [0], [0], [1, 2]], np.ones(4, np.int64)
    graph = Graph("moves", list("abcd"), np.zeros(4, np.int8), np.ones(4), 1000 * ones, edges)
    device = Device("CPU:0", LIMIT, measurable=True)
    finder = Finder(Job(Subject(None, graph), LIMIT, device, PlanOptions(cache=False)), Ledger())
    finder.ungated[1] = True
    given = Schedule(graph, [0, 2, 1, 3], status="optimal", budget_bytes=4000, lower_bound=4.0)
    known = finder._add(memory_of(graph, LIMIT), given)
    assert known.sequence.tolist() == [0, 1, 2, 3]
    found = finder._schedule(known)
    assert (found.status, found.lower_bound, found.budget_bytes) == ("optimal", 4.0, 4000)


@pytest.mark.parametrize("copied", [False, True])
def test_where_values_wait_on_the_host_all_nodes_keep_their_places(copied):
    """There is more to read than the nodes that were computed."""
    program = program_of_case("residual")
    graph = paged_graph(program) if copied else program.graph
    device = Device("CPU:0", LIMIT, measurable=True)
    finder = Finder(Job(Subject(program, graph), LIMIT, device, PlanOptions(cache=False)), Ledger())
    assert len(finder.ungated) == len(finder.graph)
    assert bool(finder.ungated.any()) is not copied


@pytest.mark.parametrize(
    ("costs", "fits", "asked", "possible"),
    [
        ({1000: 10.0}, {1000: 20.0, 940: 15.0, 970: 12.0, 985: 11.9}, [940, 970, 985], 0),  # bytes are missing
        ({1000: 10.0, 940: 15.0}, {1000: 15.0, 970: 10.2}, [970], 0),  # no more than a little is to be saved then
        ({1000: 10.0}, {1000: 20.0, 960: 10.2}, [960], 960),
        ({1000: 10.0}, {1000: 20.0}, [], 990),  # nothing fits into much less
        ({1000: 10.0, 980: 15.0}, {1000: 15.0}, [], 0),  # asked for nearly as many
        ({1000: 10.0}, {1000: 10.4}, [], 0),
        ({1000: 10.0}, {}, [], 0),
    ],
)
def test_bytes_between_what_fits_and_what_would_be_cheaper_are_asked_for(costs, fits, asked, possible, monkeypatch):
    finder, done = finder_of("unet", time_limit=10.0), list[int]()
    plain = keep_all(finder.graph)
    answer = lambda cost: SimpleNamespace(cost=cost)  # noqa: E731 - stands for a schedule
    monkeypatch.setattr(finding, "Schedule", SimpleNamespace)
    monkeypatch.setattr(finding, "proven_minimum", lambda *_: (possible, 0))
    finder.solved.update({b: answer(cost) for b, cost in costs.items()})
    known = lambda *_, **__: answer(min([fits[1000], *(fits[b] for b in done)])) if fits else None  # noqa: E731

    def solve(memory, target):
        done.append(target)
        finder.solved[target] = answer(fits[target])
        return False

    monkeypatch.setattr(finder, "_cheapest", known)
    monkeypatch.setattr(finder, "_solve", solve)
    monkeypatch.setattr(finder, "_pack", lambda *_: False)
    finder._solve_between(MEMORIES["unet"], plain.peak_bytes)
    assert done == asked
    finder.ledger.seconds["solve"] = 10.0
    del done[:]
    finder._solve_between(MEMORIES["unet"], plain.peak_bytes)
    assert not done
