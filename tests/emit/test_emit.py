"""A rematerialized step computes what the plain step computes, bit by bit, and runs every effect once."""

from __future__ import annotations

import functools
from collections import Counter

import keras
import pytest
import tensorflow as tf
from cases import (
    CASES,
    CROSSENTROPY,
    DENSE,
    Case,
    assert_same_state,
    compile_quickly,
    images,
    make,
    program_of_case,
    train,
)
from tensorflow.python.eager import context
from traced import above

from checkmate_tf.emit.emit import Emission, emit
from checkmate_tf.emit.ordering import Strict, Within, needed_waits
from checkmate_tf.fit.policy import Limits
from checkmate_tf.plan import plan_from_sequence
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import SolveOptions, solve
from checkmate_tf.trace.ops import FUSED_LATER, inputs_of, is_stateful, writes_resource
from checkmate_tf.trace.partition.classes import LARGE
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

pytestmark = pytest.mark.usefixtures("fresh_keras")


def _assert_trains_equally(case):
    plain, compiled = make(case), make(case)
    history = train(plain, case)
    compile_quickly(compiled, case)
    assert compiled.checkmate.recomputations > 0
    assert train(compiled, case) == history
    assert_same_state(plain, compiled)


@pytest.mark.long(but=("sums",))
@pytest.mark.feature("Models", "functional models", name=["residual", "unet", "separable", "sums", "dense"])
@pytest.mark.feature("Models", "Sequential models", name="sequential")
@pytest.mark.feature("Models", "subclassed models", name="subclassed")
@pytest.mark.feature("Models", "several inputs, outputs and losses", name="branches")
@pytest.mark.feature("Models", "add_loss, weight and activity regularizers, GroupNormalization", name="regularized")
@pytest.mark.feature("Models", "LSTM, GRU and Bidirectional", name="recurrent")
@pytest.mark.feature("Models", "MultiHeadAttention, LayerNormalization, dropout", name="transformer")
@pytest.mark.feature("Training", "custom train_step", name="own_step")
@pytest.mark.feature("Training", "mixed_bfloat16", name="mixed")
@pytest.mark.usefixtures("no_grappler")
@pytest.mark.parametrize("name", CASES)
def test_training_is_equal_bit_by_bit(name):
    _assert_trains_equally(CASES[name])


@pytest.mark.long(but=("sums-strict",))
@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
@pytest.mark.parametrize("name", ["sums", "residual", "transformer"])
def test_training_is_equal_with_grappler(monkeypatch, name, strict):
    """Grappler sees what it sees in a plain step wherever it could round in another way."""
    if strict:
        monkeypatch.setattr(Limits, "order", lambda *_: Strict())
    _assert_trains_equally(CASES[name])


def _frozen_filters():
    model = keras.Sequential([keras.Input((16, 16, 3))])
    for _ in range(4):
        model.add(keras.layers.Conv2D(8, 3, padding="same", activation="tanh"))
        model.layers[-1].kernel.trainable = len(model.layers) > 3
    model.add(keras.layers.GlobalAveragePooling2D())
    model.add(keras.layers.Dense(4, activation="softmax"))
    model.compile("sgd", CROSSENTROPY)
    return model


def test_biases_of_frozen_filters_are_trained():
    """Nothing waits for a filter's gradient that never comes. (With Grappler off, a plain step computes it.)"""
    _assert_trains_equally(Case(_frozen_filters, images(16), budget=0.75))


def _emitted(program, run):
    """What `run` emits for a program's step: what was emitted for what, and where."""
    made = []

    def step(*inputs):
        made.append(Emission(program, tf.compat.v1.get_default_graph(), inputs))
        run(made[0])
        return [made[0].tensor(t) for t in program.step.outputs]

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in program.step.inputs]
    graph = tf.function(step, autograph=False).get_concrete_function(*specs).graph
    return made[0], graph


@functools.cache
def _emission(name):
    """The tightly planned step of a case, emitted in loose order."""
    program = program_of_case(name)
    budget = int(CASES[name].budget * keep_all(program.graph).peak_bytes)
    schedule = solve(program.graph, budget, options=SolveOptions(10, gap=1.0))
    waits = needed_waits(program.graph, schedule.plan, Within(schedule.peak_bytes))
    return program, schedule, *_emitted(program, lambda emission: emission.run(schedule.plan, waits))


@pytest.mark.long(only=("transformer", "branches"))
@pytest.mark.parametrize("name", ["residual", "transformer", "recurrent", "branches", "mixed"])
def test_effects_happen_once_and_everything_else_as_planned(name):
    program, schedule, emission, graph = _emission(name)
    counts = schedule.evaluation.counts
    assert counts.max() > 1
    for op, node in program.node_of.items():
        assert len(emission.copies[op]) == counts[node]
    for op in program.step.operations:
        if is_stateful(op) and op in program.node_of:
            assert len(emission.copies[op]) == 1
    effects = {op.type for op in program.step.operations if is_stateful(op)}
    assert any(kind.startswith("Assign") for kind in effects)
    before = Counter(op.type for op in program.step.operations if op.type in effects)
    assert Counter(op.type for op in graph.get_operations() if op.type in effects) == before


def _attributes(op):
    added = ("_class", "_output_shapes", "_has_manual_control_dependencies")  # by TensorFlow, of no effect
    return {key: value for key, value in op.node_def.attr.items() if key not in added}


@pytest.mark.long(only=("separable",))
@pytest.mark.parametrize("name", ["residual", "transformer", "recurrent", "separable"])
def test_copies_equal_their_originals(name):
    _, _, emission, _ = _emission(name)
    for op, copies in emission.copies.items():
        for copy in copies:
            assert copy.type == op.type
            mine, theirs = _attributes(copy), _attributes(op)
            if "parallel_iterations" in mine:  # fewer rounds of a loop overlap, so that less waits in memory
                assert mine.pop("parallel_iterations").i == 2 < theirs.pop("parallel_iterations").i
            assert mine == theirs
            assert [t.dtype for t in copy.outputs] == [t.dtype for t in op.outputs]
            assert len(copy.inputs) == len(inputs_of(op))


def test_order_of_control_dependencies_is_kept():
    """Whatever waited for an operation waits for all of its copies, directly or through others."""
    _, _, emission, _ = _emission("residual")

    def ancestors(op):
        seen, todo = set(), [op]
        while todo:
            for parent in [*(t.op for t in todo[-1].inputs), *todo.pop().control_inputs]:
                if parent not in seen:
                    seen.add(parent)
                    todo.append(parent)
        return seen

    checked = 0
    for op, copies in emission.copies.items():
        first = [c for c in op.control_inputs if c in emission.copies]
        if first and is_stateful(op):
            before = ancestors(copies[0])
            for c in first:
                assert before.issuperset(emission.copies[c]), (op.name, c.name)
                checked += 1
    assert checked


def test_no_variable_is_read_above_an_assignment_it_came_after():
    """Copies of operations that read variables come before whatever assigns them, as the originals do."""
    program, _, emission, graph = _emission("recurrent")
    position = {op: k for k, op in enumerate(graph.get_operations())}
    original = {op: k for k, op in enumerate(program.step.operations)}
    for writer in program.step.operations:
        if not writer.type.startswith("Assign"):
            continue
        handle = writer.inputs[0]
        for reader in program.step.operations:
            if reader.type == "ReadVariableOp" and reader.inputs[0] is handle and reader in emission.copies:
                before = original[reader] < original[writer]
                for copy in emission.copies[reader]:
                    assert (position[copy] < position[emission.copies[writer][0]]) == before


def test_recomputations_wait_for_the_groups_before_them():
    _, _, emission, graph = _emission("residual")
    gates = [op for op in graph.get_operations() if "checkmate/gate" in op.name]
    assert gates and all(gate.control_inputs for gate in gates)
    again = [copies[1:] for copies in emission.copies.values() if len(copies) > 1]
    assert any("checkmate/gate" in t.op.name for copies in again for copy in copies for t in copy.inputs)
    # oneDNN fuses only operations whose own control inputs agree.
    for op in graph.get_operations():
        if op.type in ("Conv2D", "BiasAdd", "Conv2DBackpropFilter", "Conv2DBackpropInput", "BiasAddGrad"):
            assert not op.control_inputs


def _gated(name):
    """The graph of a case where every computation is a group of its own, so that every one is gated."""
    program = program_of_case(name)

    def step(*inputs):
        emission = Emission(program, tf.compat.v1.get_default_graph(), inputs)
        emission.run(keep_all(program.graph).plan, range(len(program.graph)))
        return [emission.tensor(t) for t in program.step.outputs]

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in program.step.inputs]
    return tf.function(step, autograph=False).get_concrete_function(*specs).graph


def _strictly(name):
    """The tightly planned step of a case, emitted in strict order."""
    program = program_of_case(name)
    budget = int(CASES[name].budget * keep_all(program.graph).peak_bytes)
    schedule = solve(program.graph, budget, options=SolveOptions(10, gap=1.0))
    made = []

    def step(*inputs):
        emission = Emission(program, tf.compat.v1.get_default_graph(), inputs)
        emission.run_strictly(schedule.plan)
        made.append(emission)
        return [emission.tensor(t) for t in program.step.outputs]

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in program.step.inputs]
    graph = tf.function(step, autograph=False).get_concrete_function(*specs).graph
    return program, schedule, made[0], graph


@pytest.mark.long(but=("residual", "unet", "recurrent"))
@pytest.mark.parametrize("name", ["residual", "transformer", "recurrent", "sums", "unet", "separable", "branches"])
def test_in_strict_order_large_operations_run_one_after_another(name):
    """Each comes after all large ones before it, by what it reads or what it waits for.

    What Grappler may rewrite together inside of a node may run with it. What is fused later may lag.
    """
    program, schedule, emission, graph = _strictly(name)
    order, turns, free = [], Counter(), set()
    for node in schedule.plan.sequence:
        for op in program.nodes[node]:
            if program.classes[op] == LARGE:
                if op is not program.nodes[node][0] and op in emission.rewritten:
                    free.add(len(order))
                order.append(emission.copies[op][turns[op]])
                turns[op] += 1
    assert max(turns.values()) > 1
    number = {op: k for k, op in enumerate(order)}
    before = dict[tf.Operation, int]()  # bits: which of the large operations come before
    todo = list(graph.get_operations())
    while todo:
        parents = [*(t.op for t in todo[-1].inputs), *todo[-1].control_inputs]
        unseen = [parent for parent in parents if parent not in before]
        todo += unseen
        if not unseen:
            op = todo.pop()
            mine = 1 << number[op] if op in number else 0
            before[op] = functools.reduce(lambda bits, parent: bits | before[parent], parents, mine)
    lagging = sum(1 << k for k, op in enumerate(order) if op.type in FUSED_LATER)
    for k, op in enumerate(order):
        if op.type not in FUSED_LATER and k not in free:
            missing = ((1 << k) - 1) & ~lagging & ~before[op]
            names = [late.name for j, late in enumerate(order) if missing >> j & 1]
            assert not names, f"{op.name} does not wait for {names[:5]}"


def test_the_shape_of_a_large_value_is_read_before_the_next_value_comes():
    """Else it would be read at any time, and hold the value until then, or nothing could take its memory over."""

    def step(x):
        y = tf.exp(x)
        rows = tf.cast(tf.shape(y)[0], tf.float32)
        z = tf.sin(x)
        return tf.reduce_sum(y * z) / rows + tf.reduce_sum(tf.cos(z))

    traced = trace_step(step, tf.TensorSpec([None, 1024]))
    program = build_program(traced, with_static_batch(traced, [tf.TensorShape([64, 1024])]), "step", 1024)
    of = {op.type: op for op in program.step.operations}
    value, rows, other = (program.node_of[of[kind]] for kind in ("Exp", "Cast", "Sin"))
    rest = [node for node in keep_all(program.graph).sequence if node not in (value, rows, other)]
    for sequence in ([value, rows, other, value, *rest], [value, rows, other, *rest]):
        plan = plan_from_sequence(program.graph, sequence)
        emission, _ = _emitted(program, lambda emission, plan=plan: emission.run_strictly(plan))
        shape, sine = emission.copies[of["Shape"]][0], emission.copies[of["Sin"]][0]
        assert shape in above(sine)


def test_sums_are_of_two_and_wait_without_gates():
    """Grappler sorts their terms by name, and gives more than two a variable that outlives the step."""
    sums = [op for op in _gated("sums").get_operations() if op.type == "AddN"]
    assert all(len(op.inputs) <= 2 for op in sums)
    after = [op for op in sums if op.inputs[0].op.type == "Snapshot"]
    assert after and any(op.control_inputs for op in sums)
    assert not any("checkmate/" in t.op.name for op in sums for t in op.inputs)


def test_loops_wait_with_their_counters():
    """With its counter alone a loop begins, and computes of many iterations what does not read its state."""
    loops = [op for op in _gated("recurrent").get_operations() if op.type in ("While", "StatelessWhile")]
    assert len(loops) > 3
    for loop in loops[1:]:  # nothing is computed before the first
        made = [t for t in loop.inputs if t.op.type not in ("While", "StatelessWhile")]
        counters = [t for t in made if t.dtype.is_integer and t.shape.rank == 0]
        assert counters and all("checkmate/gate" in t.op.name for t in counters)


def test_results_keep_their_structure():
    program = program_of_case("dense")
    schedule = keep_all(program.graph)
    x, y = DENSE.data(4)
    result = tf.function(
        lambda *batch: emit(program, schedule.plan, Within(schedule.peak_bytes), batch), autograph=False
    )(x, y)
    assert set(result) == {"accuracy", "loss"}


@pytest.mark.long(only=("residual",))
@pytest.mark.parametrize("name", ["sums", "residual", "transformer"])
def test_no_two_copies_read_the_same(name):
    """Grappler would take them for one, and keep its value from the first reader to the last."""
    program, schedule, _, _ = _emission(name)
    emission, _ = _emitted(program, lambda emission: emission.run_strictly(schedule.plan))
    again = {op: copies for op, copies in emission.copies.items() if len(copies) > 1 and program.classes[op] == LARGE}
    assert again
    for op, copies in again.items():
        read = {(*(t.name for t in copy.inputs), *(c.name for c in copy.control_inputs)) for copy in copies}
        assert len(read) == len(copies), op.name


@pytest.mark.long
@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
def test_variables_are_assigned_when_nothing_reads_their_values(strict):
    """Or TensorFlow would copy them, and each step would find them elsewhere."""
    program, schedule, emission, graph = _emission("residual")
    if strict:
        emission, graph = _emitted(program, lambda emission: emission.run_strictly(schedule.plan))
    before: dict[tf.Operation, set[tf.Operation]] = {}
    for op in graph.get_operations():
        parents = [*(t.op for t in op.inputs), *op.control_inputs]
        before[op] = set(parents).union(*(before.get(p, ()) for p in parents))
    pairs = 0
    for write, writes in emission.copies.items():
        handles = {t.op for t in write.inputs} if writes_resource(write) else set()
        for op, copies in emission.copies.items():
            owners = [program.source_of(t).op for t in inputs_of(op)]
            reads = any(o.type == "ReadVariableOp" and o.inputs[0].op in handles for o in owners)
            if reads and program.classes.get(op) == LARGE:
                assert before[writes[0]].issuperset(copies), (write.name, op.name)
                pairs += len(copies)
    assert pairs > 10


@pytest.mark.long(only=("residual",))
@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_grappler_gets_through(name):
    """It gives up without a word where control edges and what it rewrites make a cycle; then nothing is fused."""
    program, schedule, _, _ = _emission(name)
    data = [tf.zeros(t.shape, t.dtype) for t in (program.static.tensors[id(t)] for t in program.step.inputs)]
    step = tf.function(lambda *given: emit(program, schedule.plan, Strict(), given), autograph=False)
    context.enable_run_metadata()
    try:
        step(*data)
        found = max(context.export_run_metadata().function_graphs, key=lambda g: len(g.pre_optimization_graph.node))
    finally:
        context.disable_run_metadata()
    emitted, optimized = found.pre_optimization_graph.node, found.post_optimization_graph.node
    assert len(optimized) < 0.9 * len(emitted)
    assert any(node.op.startswith("_Fused") for node in optimized)
