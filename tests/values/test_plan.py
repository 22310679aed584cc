"""Plans: statements that know their order, their text and their registers."""

import numpy as np
from graphs import chain

from checkmate_tf import evaluator, plan, statements
from checkmate_tf.plan import plan_from_sequence


def test_the_text_of_a_plan():
    graph = chain(1)  # f0, loss, g0 reads f0 and the loss
    assert str(plan_from_sequence(graph, [0, 1, 2])).splitlines() == [
        "%0 = allocate 0", "compute 0, %0", "%1 = allocate 1", "compute 1, %1", "%2 = allocate 2", "compute 2, %2",
        "deallocate %0", "deallocate %1",
    ]  # fmt: skip


def test_plans_have_length_and_order():
    found = plan_from_sequence(chain(2), np.arange(5))
    assert len(found) == len(list(found))
    assert found.registers == 5


def test_what_moved_below_can_be_imported_from_here():
    for name in ("ALLOCATE", "COMPUTE", "DEALLOCATE", "Statement"):
        assert getattr(plan, name) is getattr(statements, name)
    for name in ("Evaluation", "evaluate", "workspaces"):
        assert getattr(plan, name) is getattr(evaluator, name)
