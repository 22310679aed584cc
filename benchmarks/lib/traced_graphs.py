"""Training steps of networks, traced and with modelled costs, as searches for orders are measured on."""

from __future__ import annotations

from typing import Any

__all__ = ["networks", "traced_graphs"]


def networks() -> dict[str, Any]:
    """All by name."""
    from benchmarks.lib.branching_networks import BRANCHING
    from benchmarks.lib.unseen_networks import UNSEEN
    from checkmate_tf.check.networks import NETWORKS as known

    return {**known, **UNSEEN, **BRANCHING}


def traced_graphs(name: str) -> list[Any]:
    """With late updates, if they help, and as traced."""
    from checkmate_tf.costs.roofline import Rates, roofline_us
    from checkmate_tf.device.measure import find_device
    from checkmate_tf.fit.job import Ledger
    from checkmate_tf.fit.options import PlanOptions
    from checkmate_tf.fit.subjects.tracing import Tracing
    from checkmate_tf.keras.batches.spec import data_spec
    from checkmate_tf.keras.built.building import build_training

    network = networks()[name]
    model = network.model()
    spec, batch = data_spec(model, None, None, network.data(1))
    build_training(model, spec, model.train_step)
    options = PlanOptions(costs=lambda op: roofline_us(op, Rates()), verify=False)
    tracing = Tracing(batch, options, model.name, find_device(), Ledger())
    return [one.graph for one in tracing.orders(*tracing.trace(model.train_step, spec, None))]
