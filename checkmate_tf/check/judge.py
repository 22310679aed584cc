"""From what children measured to lines. Pure functions of plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..units import format_bytes
from .line import Line, failed, not_run, passed

__all__ = [
    "judge_bits",
    "judge_device",
    "judge_largest",
    "judge_limit",
    "judge_limited",
    "judge_peer",
    "judge_policy",
    "judge_train",
]

Found = Mapping[str, Any]

ALIKE, ALIKE_TF32 = 1e-5, 1e-3
"""Relative differences below this are rounding: sums of a thousand float32 terms in another order come near 1e-5. With
TensorFloat-32, as on GPUs by default, products keep 10 bits of their factors."""

TIMES = 10.0
"""Plain steps whose kernels add in no fixed order differ from themselves. Ours may differ by so many times as much.
And it may differ by as much as the plain step does without Grappler."""

GRAIN = 256
"""Bytes of which chunks of an allocator are multiples."""

SMALL = 16
"""Chunks of that size that an operation may need for itself: shapes."""

KEPT = 0.90
"""Of a limit: what an allocator must at least give. The rest is lost to pieces, and to what TensorFlow keeps itself."""

NO_LIMIT = "cuda_malloc_async"
"""An allocator (TF_GPU_ALLOCATOR) that gives more than the limit of a logical device: measured on an H200."""

MODELLED = 2.0
"""Times: operations are timed alone, so the sum of the costs may be twice the step, as it is for small steps that keep
several threads busy. Beyond that, the costs are not those of this device."""


def judge_device(device: str, found: Found) -> Iterator[Line]:
    """Allocator and its statistics, its map, bandwidths."""
    what = "allocator statistics"
    if not found["measurable"]:
        yield failed(device, what, "the allocator keeps none, so peaks cannot be measured", found)
    else:
        taken, asked, peak = found["taken_bytes"], found["asked_bytes"], found["peak_bytes"]
        exact = 0 <= taken - asked <= GRAIN and found["left_bytes"] == 0 and 0 <= peak - taken <= SMALL * GRAIN
        text = f"{asked} bytes asked for, {taken} counted, peak {peak}, {found['left_bytes']} left"
        yield (passed if exact else failed)(device, what, text, found)
    if "no_map" in found:
        yield not_run(device, "allocator model", found["no_map"])
    else:
        yield passed(device, "allocator model", f"{found['allocator']}, its map has {found['chunks']} chunks")
    rates = ", ".join(f"{name.replace('_', ' ')} {rate / 1e9:.1f} GB/s" for name, rate in found["bandwidth"].items())
    if rates:
        yield passed(device, "bandwidth", rates, found["bandwidth"])
    else:
        yield not_run(device, "bandwidth", "nine copies took no longer than one: others used the device meanwhile")


def judge_limit(device: str, asked_bytes: int, found: Found) -> Iterator[Line]:
    """Whether a hard limit holds."""
    held, known = found["held_bytes"], found["limit_bytes"]
    text = f"{format_bytes(held)} were given under a limit of {format_bytes(asked_bytes)}"
    if not found["refused"] and found["allocator"] == NO_LIMIT:
        yield not_run(device, "hard limit", f"{NO_LIMIT} takes none", found)
        return
    good = found["refused"] and KEPT * asked_bytes <= held <= asked_bytes and known == asked_bytes
    if known != asked_bytes:
        text += f", which was taken for {format_bytes(known)}"
    yield (passed if good else failed)(device, "hard limit", text, found)


def judge_train(device: str, network: str, found: Found) -> Iterator[Line]:
    """Peaks within budgets, times, and how far numbers are apart where kernels give other bits each time."""
    if "no_xla" in found:
        yield not_run(device, network, found["no_xla"], found)
        return
    batch, plain = found["batch_size"], found["plain_peak_bytes"]
    base = {k: v for k, v in found.items() if k != "cells"}
    for cell in found["cells"]:
        what, figures = f"{network} at {cell['share']:.0%}", {**base, **cell}
        if "error" in cell:
            yield failed(device, what, cell["error"], figures)
            continue
        peak = cell["peak_bytes"]
        held = peak <= cell["budget_bytes"]
        placed = cell["placed_peak_bytes"]
        refused = ""
        if "refused_bytes" in cell:
            refused = f"{format_bytes(cell['refused_bytes'])} refused, and of the least that it named "
        text = (
            f"batch {batch}: {refused}{format_bytes(peak)} in a budget of {format_bytes(cell['budget_bytes'])} "
            f"(values {format_bytes(cell['predicted_peak_bytes'])}, "
            f"{'no model' if placed is None else format_bytes(placed) + ' placed'}; plain {format_bytes(plain)}), "
            f"step {cell['step_ratio']:.2f}x of {cell['plain_step_ms']:.1f} ms, {cell['predicted_ratio']:.2f}x expected"
        )
        yield (passed if held else failed)(device, what, text, figures)
    yield from _costs(device, network, found["cells"])
    yield from _apart(device, network, found)


def _costs(device: str, network: str, cells: list[Found]) -> Iterator[Line]:
    """Whether the sum of the costs is the time of the plain step."""
    known = [c for c in cells if c.get("model_step_ms")]
    if not known:
        return
    modelled, measured = known[0]["model_step_ms"], min(c["plain_step_ms"] for c in known)
    ratio = modelled / measured
    text = f"the costs add up to {modelled:.1f} ms, the plain step takes {measured:.1f} ms"
    good = 1 / MODELLED <= ratio <= MODELLED
    figures = {"model_step_ms": modelled, "plain_step_ms": measured}
    yield (passed if good else failed)(device, f"{network}, costs", text, figures)


def _apart(device: str, network: str, found: Found) -> Iterator[Line]:
    """Ours against the plain step, beside the plain step against itself, and against one that is compiled otherwise."""
    known = [c for c in found["cells"] if "apart" in c]
    if not known:
        return
    worst, own = (_worst(value for c in known for value in c[key].values()) for key in ("apart", "itself"))
    other = _worst(found.get("otherwise", {}).values())
    alike = ALIKE_TF32 if found.get("tf32") else ALIKE
    good = worst <= max(alike, *(share for share in (TIMES * own, other) if math.isfinite(share)))
    otherwise = f", and {other:.1e} if compiled otherwise" if "otherwise" in found else ""
    text = f"{worst:.1e} from the plain step, which is {own:.1e} from itself{otherwise} (relative, loss and gradients)"
    figures = {"apart": worst, "itself": own, "otherwise": other}
    yield (passed if good else failed)(device, f"{network}, kernels as they are", text, figures)


def _worst(values: Iterable[float]) -> float:
    """The largest; infinite if one is no number, which `max` may pass over."""
    return max((math.inf if math.isnan(value) else value for value in values), default=0.0)


def judge_bits(device: str, what: str, plain: Found, ours: Found) -> Iterator[Line]:
    """The bits of a few steps.

    Each is what a child answered, or `{"failed": why, "out_of_memory": bool}`.
    """
    if "failed" in plain:
        yield not_run(device, f"{what}, equal bits", f"the plain step failed: {plain['failed']}")
    elif "failed" in ours:
        yield failed(device, f"{what}, equal bits", f"ours failed: {ours['failed']}")
    else:
        yield _bits(device, what, plain, ours)


def judge_limited(device: str, network: str, limit_bytes: int, plain: Found, ours: Found) -> Iterator[Line]:
    """Under a hard limit the plain step runs out of memory, and ours trains. Both are as for `judge_bits`."""
    what = f"{network}, under {format_bytes(limit_bytes)}"
    figures = {"limit_bytes": limit_bytes, "plain": plain, "ours": ours}
    if "failed" in ours:
        yield failed(device, what, f"ours failed: {ours['failed']}", figures)
        return
    peak, budget_bytes = ours["peak_bytes"], ours["budget_bytes"]
    text = f"ours trained in {format_bytes(peak)}"
    if peak > budget_bytes:
        yield failed(device, what, f"{text}, over the budget of {format_bytes(budget_bytes)}", figures)
    elif "failed" not in plain:
        yield not_run(device, what, f"{text}, but so did the plain step: the limit is not low enough for it", figures)
    elif not plain["out_of_memory"]:
        yield failed(device, what, f"{text}, the plain step failed otherwise: {plain['failed']}", figures)
    else:
        yield passed(device, what, f"{text}, the plain step ran out of memory", figures)


def judge_largest(device: str, network: str, limit_bytes: int, plain: int, ours: int) -> Iterator[Line]:
    """The largest batches that trained under a hard limit; 0 where none did."""
    figures = {"limit_bytes": limit_bytes, "plain_batch": plain, "our_batch": ours}
    times = f", {ours / plain:.1f} times as many" if plain else ""
    text = f"under {format_bytes(limit_bytes)} ours trained {ours} samples, the plain step {plain}{times}"
    yield (passed if ours > plain else failed)(device, f"{network}, largest batch", text, figures)


def _bits(device: str, what: str, plain: Found, ours: Found) -> Line:
    equal = plain["digest"] == ours["digest"] and plain["losses"] == ours["losses"]
    text = f"losses, weights, statistics, seeds and slots after {plain['steps']} steps are "
    text += "equal, bit by bit" if equal else f"NOT equal: losses {ours['losses']}, plain {plain['losses']}"
    return (passed if equal else failed)(device, f"{what}, equal bits", text)


def judge_policy(device: str, policy: str, network: str, plain: Found, ours: Found) -> Iterator[Line]:
    """A step in another precision: within its budget, with the plain step's bits."""
    what = f"{network} in {policy}"
    for found in (plain, ours):
        if "failed" in found:
            yield failed(device, what, found["failed"])
            return
    peak, budget_bytes = ours["peak_bytes"], ours["budget_bytes"]
    text = _within(peak, budget_bytes, plain["peak_bytes"])
    yield (passed if peak <= budget_bytes else failed)(device, what, text, {"plain": plain, "ours": ours})
    yield _bits(device, what, plain, ours)


def _within(peak: int, budget_bytes: int, plain_bytes: int) -> str:
    sizes = map(format_bytes, (peak, budget_bytes, plain_bytes))
    return "{} measured in a budget of {}, plain {}".format(*sizes)


def judge_peer(device: str, network: str, found: Found) -> Iterator[Line]:
    """What Keras's own recomputation does here."""
    what = f"{network}, keras.RematScope"
    plain = format_bytes(found["plain_peak_bytes"])
    if "peer_error" in found:
        yield passed(device, what, f"raises {found['peer_error']}; plain {plain}", found)
    else:
        yield passed(device, what, f"{format_bytes(found['peer_peak_bytes'])} measured, plain {plain}", found)
