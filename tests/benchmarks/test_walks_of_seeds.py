"""What several walks find at once is told from the seeds of one."""

import pytest

from benchmarks.product.walks import of_so_many

OVERHEADS = [[None, 0.3], [0.4, 0.2], [0.6, 0.1]]


@pytest.mark.parametrize(
    "moment, walks, overhead, found",
    [(0, 1, 0.5, 2 / 3), (0, 2, (0.4 + 0.6 + 0.4) / 3, 1), (0, 3, 0.4, 1), (1, 1, 0.2, 1), (1, 3, 0.1, 1)],
)
def test_the_least_of_all_choices_of_so_many(moment, walks, overhead, found):
    answer = of_so_many(OVERHEADS, moment, walks)
    assert answer == {"overhead": pytest.approx(overhead), "found": pytest.approx(found)}


def test_where_no_seed_has_anything_there_is_nothing():
    assert of_so_many([[None], [None]], 0, 1) == {"overhead": None, "found": 0}
