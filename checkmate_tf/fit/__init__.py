"""Fits a plan to a device: solve, run, correct the target, solve again.

options     how to plan, as the user said it
policy      every share of the budget, with its reason, and what it means in bytes
tracing     from a training step to its program and graph
job         what is to be fitted into how much, and the ledger of what was done
decide      pure: what to solve, to measure or to refuse next
run         carries out what `decide` says: emits plans and measures them
solving     schedules for a target, new or from the cache
cache       schedules that were solved before, on disk
encodings   which gradients read codes of forward values
planned     the plan that trains, and the report on it
pipeline    all of it in order: `plan_step`, and `plan_again` where training needs more than was measured
"""
