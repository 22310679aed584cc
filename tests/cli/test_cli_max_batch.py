"""`checkmate-tf max-batch`: its answer as JSON, and options that make no sense."""

from __future__ import annotations

import json

import pytest
from commands import assert_refused, invoke
from graphs import chain

from checkmate_tf.files.graphs import write_graph


@pytest.fixture
def path(tmp_path):
    write_graph(chain(8), tmp_path / "chain.json")
    return tmp_path / "chain.json"


def test_the_answer_is_json_also_at_the_largest_overhead(path):
    done = invoke("max-batch", path, "--memory", 100, "--time-limit", 1, "--max-overhead", "1000000", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert found["bound_order"] == "fixed"
    assert found["batch_size"] >= 1 and found["max_cost"] >= found["cost"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--seed", -1], "--seed"),
        (["--time-limit", "inf"], "--time-limit is inf: give a number"),
        (["--max-overhead", "1e308"], "at most 1,000,000"),
        (["--max-overhead", "nan"], "give a share of the step's cost"),
        (["--time-limit", "1e300"], "at most 1e+09"),
        (["--memory", "60%"], 'give bytes or a size such as "16GB"'),
        (["--inputs", "--optimizer", "sgd"], "is a graph, not a model: leave out --inputs, --optimizer"),
    ],
)
def test_bad_options_are_status_2(path, options, says):
    assert_refused(invoke("max-batch", path, "--memory", 100, *options), says)


def test_names_are_no_markup_and_suffixes_have_any_case(path):
    odd = path.rename(path.with_name("m[bold].JSON"))
    done = invoke("max-batch", odd, "--memory", 100, "--time-limit", 1)
    assert done.exit_code == 0, done.stderr
    assert "m[bold].JSON: batch" in done.stdout and "in the order of the graph" in done.stdout
