"""An order of computation becomes statements: Algorithm 1, with values freed as early as they can be."""

import pytest
from graphs import chain

from checkmate_tf.errors import PlanError
from checkmate_tf.graph import Graph
from checkmate_tf.statements import ALLOCATE, COMPUTE, DEALLOCATE, Statement, statements_of


def test_a_copy_dies_with_its_last_reader_before_the_next():
    graph = chain(2)  # f0 f1 loss g1(f0, f1, loss) g0(f0, g1)
    found = statements_of(graph, [0, 1, 2, 0, 3, 4])
    assert [s for s in found if s.op != ALLOCATE] == [
        Statement(COMPUTE, 0, 0), Statement(COMPUTE, 1, 1, (0,)), Statement(DEALLOCATE, 0, 0),
        Statement(COMPUTE, 2, 2, (1,)), Statement(COMPUTE, 0, 3), Statement(COMPUTE, 3, 4, (3, 1, 2)),
        Statement(DEALLOCATE, 1, 1), Statement(DEALLOCATE, 2, 2), Statement(COMPUTE, 4, 5, (3, 4)),
        Statement(DEALLOCATE, 0, 3), Statement(DEALLOCATE, 3, 4),
    ]  # fmt: skip


def test_what_nobody_reads_is_kept_to_the_end_and_an_older_copy_is_not():
    graph = Graph("sinks", ["a", "b"], [0, 0], [1.0, 1.0], [1, 1], [[], []])
    freed = [s for s in statements_of(graph, [0, 1, 0]) if s.op == DEALLOCATE]
    assert freed == [Statement(DEALLOCATE, 0, 0)]


def test_too_early():
    with pytest.raises(PlanError, match="f1 is computed before its input f0"):
        statements_of(chain(2), [1])
