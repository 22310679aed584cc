"""How near to the budget plans may come: every share that fitting a plan to a device uses, each with its reason.

Nothing else that decides about plans holds such a number. `FitPolicy` says what is allowed in general, `Limits` what
that means, in bytes, for one budget on one device. Both are pure values: no TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..emit.ordering import Order, Strict, Within
from ..units import format_bytes

__all__ = ["POLICY", "FitPolicy", "Limits"]


@dataclass(frozen=True)
class FitPolicy:
    """Shares, counts and seconds, and why. Each entry begins with what its share is of, or what it multiplies.

    Attributes
    ----------
    goal : float
        Of the budget: what steps of a plan should come near. The rest is for steps that take more than those measured.
    placed : float
        Of the budget: the same, where the allocator has a model. The rest is for what the model does not know. Steps
        out of order differ, and the model draws some: by as much as their most is above their median, others may take
        more than that.
    wrong, wrong_loose : float
        Of what the model says: a measurement that differs by more shows that the model is wrong, in strict order and
        out of order.
    named : float
        Times the least that is known to do: what a refusal names. The next search may find a little less good.
    named_bytes : int
        At least so much more than the least that is known to do. In small models, single chunks and batches that come
        and go are a large share of the peak: steps of one plan in strict order took 5.2 to 6.3 MB.
    hope : float
        Times the most that steps may take: a schedule that takes no more by the model is worth a measurement.
    sure : float
        Of the budget: the most that steps may be expected to take (`Peak.sure_bytes`).
    waste : float
        Of the memory for activations: what the allocator is expected to lose to pieces, until it is measured.
    tight : float
        Times the budget. An allocator whose hard limit is below this is *near*: running out of memory while a plan is
        measured can crash the process, since oneDNN does not check all allocations.
    clear : float
        Of a near limit: what to aim for. The rest is lost to pieces too small to use.
    room : float
        Of what a near limit leaves beside constants: what the first plan may take by prediction.
    most : float
        Of a near limit: above it a plan is refused. Sooner or later one of its steps would run out of memory.
    loose : float
        Times the predicted peak: what computations out of order may need. They seldom do, and it is measured.
    pieces : float
        Of the memory for activations: what pieces take at least. Computations out of order leave it free, too.
    used : float
        Of the goal: steps that take this much leave nothing that is worth another plan.
    worth : float
        Of the cost of a step: what another plan has to save, and as much again for each that was measured in vain.
    worth_placed : float
        The same, where the first plan was chosen by the allocator's model: it is seldom far from the best.
    apart : float
        Of the placed peak: where steps out of order differ by more, as the model draws them, the first plan is one in
        strict order, unless that costs as much more: such plans took more than their budget more often than others.
    lower : float
        Of the least peak predicted so far: a plan below this is another one to the allocator, and worth a measurement.
    near_budget : float
        Times the budget: where the least measured is below it, another schedule with the least peak may lose less.
        Where it is proven that none is below it, no workspaces are learned.
    strict_cost : float
        Times the seconds of a step: what strict order is taken to cost in parallelism, until it is measured. In six
        networks it was 1.00 to 1.08 by least times, and later 1.11 to 1.17 in a transformer.
    short : float
        Seconds of a step: below this the clock decides between the orders, not costs. Threads gain more by running
        small operations side by side than costs tell: in strict order, steps of small networks took 1.07 to 1.28 times
        as long, and out of order recomputations took a third of what they cost alone.
    short_cost : float
        Times the cost of the best plan, in strict order: what one out of order may cost and be worth a measurement
        where steps are short. Plans out of order that cost 1.2 to 1.3 times as much were the faster ones.
    same_seconds : float
        Times the seconds of a step: no more than the same step may take at another time.
    unsteady : float
        Of a peak: where steps differ by more, strict order is worth a measurement.
    out_of_memory : float
        Of the budget: how much lower the next target is after a plan that ran out of memory, which tells no peak.
    solve_share : float
        Of the seconds left for solving: what one target may take. Measurements will ask for others.
    least_seconds : float
        At least, to make the schedule of least known peak cheaper.
    named_seconds : float
        To look for the schedule of least peak, where a budget is proven to be too small and its refusal names another.
    ahead : int
        Batches that are made ahead of the step where `fit` reads arrays (`keras.batches.feeding`).
    batches : int
        How many to keep reserves for where a pipeline of the user's makes them: `prefetch(AUTOTUNE)` keeps six ready.
    batches_on_device : int
        How many batches a device that is not the host holds while it trains: one in use, and one that comes.
    reserves : float
        Of the budget, at most, for these.
    folded : float
        Of the budget: where a step with loops has more constants that only a known batch size makes constant, plans are
        measured with a known one. Else with an open one: loops take up to a tenth more then.
    told : float
        Of the budget: where batches that are kept ready take more, a refusal says how to keep fewer. Where what is not
        the model's takes more, it says that.
    tries_instead : int
        Plans of another kind to measure (without codes, or with copies to the host), where one fits already.
    host_share : float
        Of the host's memory: what copies of values may take there. The rest is for data, and for other processes.
    code_rounds : int
        Choices of codes to solve for.
    code_share : float
        Of the time limit, for all of them.
    alone_seconds : float
        For measuring workspaces alone where they are learned from a step later. Large operations come first, and a
        first schedule needs no more.
    learn_share : float
        Of the time limit: what the schedule may take that workspaces are learned from. It need not be good. It has to
        fit, and to run every operation.
    learn_tries : int
        Schedules to learn from, each for less memory, where steps run out of it: kernels took up to a quarter more than
        alone (on an H200).
    full : float
        Of the budget: where data, or what else came since, is expected to fill more, a plan with room for it is made
        before training.
    moved : float
        Of the budget: where what is not the model's has become more or less by that, values may find other chunks.
    plans_again : int
        Most plans that are made anew for data, or after peaks over the budget while training.
    """

    goal: float = 0.95
    placed: float = 0.965
    wrong: float = 0.2
    wrong_loose: float = 0.25
    named: float = 1.05
    named_bytes: int = 2 * 2**20
    hope: float = 1.01
    sure: float = 0.985
    waste: float = 0.25
    tight: float = 1.25
    clear: float = 0.8
    room: float = 0.5
    most: float = 0.92
    loose: float = 1.15
    pieces: float = 0.1
    used: float = 0.955
    worth: float = 0.01
    worth_placed: float = 0.03
    apart: float = 0.02
    lower: float = 0.98
    near_budget: float = 1.1
    strict_cost: float = 1.05
    short: float = 0.05
    short_cost: float = 1.5
    same_seconds: float = 1.03
    unsteady: float = 0.05
    out_of_memory: float = 0.1
    solve_share: float = 0.5
    least_seconds: float = 8.0
    named_seconds: float = 8.0
    ahead: int = 0
    batches: int = 8
    batches_on_device: int = 2
    reserves: float = 0.2
    folded: float = 0.05
    told: float = 0.1
    tries_instead: int = 2
    host_share: float = 0.5
    code_rounds: int = 3
    code_share: float = 0.25
    alone_seconds: float = 8.0
    learn_share: float = 0.1
    learn_tries: int = 3
    full: float = 0.99
    moved: float = 0.005
    plans_again: int = 3

    def beyond_limit(self, peak_bytes: int, limit_bytes: int, on_cpu: bool) -> bool:
        """Whether steps with this peak may run out of memory under the hard limit of a CPU's allocator."""
        return on_cpu and peak_bytes > self.most * limit_bytes

    def still_fits(self, expected_bytes: int, sure_bytes: int, budget_bytes: int) -> bool:
        """Whether a plan may be used again, unmeasured.

        Parameters
        ----------
        expected_bytes : int
            What its steps are expected to take, with all that came to the device since.
        sure_bytes : int
            The same when it was measured. Where nothing came, a plan that then was the best one still is.
        budget_bytes : int
        """
        return expected_bytes <= max(self.full * budget_bytes, sure_bytes)

    def wrong_model(self, predicted_bytes: int, peak_bytes: int, strict: bool) -> bool:
        """Whether a measured peak shows that the allocator is not as its model has it."""
        most = self.wrong if strict else self.wrong_loose
        return abs(peak_bytes - predicted_bytes) > most * predicted_bytes

    def held_batches(self, prefetch: int | None) -> int:
        """How many batches a CPU holds while it trains. One reserve is left for when one replaces another."""
        return max(1, self.reserved_batches(prefetch) - 1)

    def ready_batches(self, prefetch: int | None) -> int:
        """How many of them are ready, beside the one in use and the one that is being made."""
        return max(min(1, prefetch or 0), self.held_batches(prefetch) - 2)

    def needed_bytes(self, placed_bytes: int) -> int:
        """The budget that a refusal names, where the allocator's model needs so much at least."""
        least = placed_bytes / self.placed
        return int(max(self.named * least, least + self.named_bytes)) + 1

    def kept_ready(self, batch_bytes: int, budget_bytes: int, least_bytes: int) -> str:
        """What a refusal says of batches that a pipeline keeps ready; empty where they take little of the budget.

        Parameters
        ----------
        batch_bytes, budget_bytes : int
        least_bytes : int
            What the refusal names, with these batches.
        """
        fewer = batch_bytes * (self.held_batches(None) - self.held_batches(1))
        if fewer <= self.told * budget_bytes:
            return ""
        return (
            f". Batches that a pipeline keeps ready take much of that: about {format_bytes(least_bytes - fewer)} would "
            "do with one that ends in prefetch(1), and compile(..., prefetch=1)"
        )

    def not_ours(self, foreign_bytes: int, budget_bytes: int, least_bytes: int) -> str:
        """What a refusal says of what is on the device and not the model's; empty where that is little of the budget.

        Parameters
        ----------
        foreign_bytes, budget_bytes : int
        least_bytes : int
            What the refusal names, with all that.
        """
        if foreign_bytes <= self.told * budget_bytes:
            return ""
        return (
            f". {format_bytes(foreign_bytes)} of that are not this model's: other models, or arrays. Without them "
            f"about {format_bytes(max(0, least_bytes - foreign_bytes))} would do"
        )

    def nothing_again(self, plain_bytes: int, least_bytes: int) -> str:
        """What a refusal says if the budget that it names is enough to compute nothing again; empty otherwise.

        Parameters
        ----------
        plain_bytes : int
            What a step that computes nothing again takes, as it is placed.
        least_bytes : int
            What the refusal names.
        """
        if plain_bytes > least_bytes:
            return ""
        return f". That is enough to compute nothing again: such a step takes about {format_bytes(plain_bytes)}"

    def reserved_batches(self, prefetch: int | None) -> int:
        """For how many batches to keep reserves. 0 if no batch is made before it is asked for (`prefetch` 0)."""
        if prefetch is None:
            return self.batches
        return prefetch + 2 if prefetch else 0


POLICY = FitPolicy()
"""What plans are fitted by."""


@dataclass(frozen=True)
class Limits:
    """What plans may take, for one budget on one device; bytes throughout, constants included.

    Attributes
    ----------
    budget_bytes : int
        Of the device, all in all.
    constant_bytes : int
        Of it what is there in every plan.
    device_bytes : int
        The hard limit of the device's allocator.
    on_cpu : bool
        Whether the device is the host, whose allocator the input pipeline shares.
    measured : bool
        Whether plans are run on the device.
    ordered : bool
        Whether the order of computations is ours to choose. XLA has an order of its own.
    modelled : bool
        Whether the device's allocator has a model, so that a target is what it will take.
    strict : bool
        Whether only strict order will do: a plan with copies says when each is waited for.
    alternative : bool
        Whether there is another kind of step to plan if no plan of this one fits.
    policy : FitPolicy
    """

    budget_bytes: int
    constant_bytes: int
    device_bytes: int
    on_cpu: bool
    measured: bool
    ordered: bool = True
    modelled: bool = False
    strict: bool = False
    alternative: bool = False
    policy: FitPolicy = POLICY

    @property
    def near_limit(self) -> bool:
        """Whether a plan that needs more than was predicted may run out of memory."""
        return self.measured and self.on_cpu and self.device_bytes < self.policy.tight * self.budget_bytes

    @property
    def most_bytes(self) -> int:
        """The most that steps of a plan may be expected to take (`Peak.sure_bytes`)."""
        most = int(self.policy.sure * self.budget_bytes)
        return min(most, int(self.policy.most * self.device_bytes)) if self.near_limit else most

    @property
    def last_bytes(self) -> int:
        """What they may be expected to take where no plan takes less: the budget, as a last resort and if safe."""
        return self.most_bytes if self.near_limit or self.alternative else self.budget_bytes

    @property
    def limited(self) -> bool:
        """Whether it is the hard limit that allows no higher peak, not the budget."""
        policy = self.policy
        return self.near_limit and policy.most * self.device_bytes < policy.sure * self.budget_bytes

    @property
    def goal_bytes(self) -> int:
        """What steps of a plan should come near. It stays away from a hard limit."""
        if self.modelled:
            return min(int(self.policy.placed * self.budget_bytes), self.most_bytes)
        goal = int(self.policy.goal * self.budget_bytes)
        return min(goal, int(self.policy.clear * self.device_bytes)) if self.near_limit else goal

    @property
    def orders(self) -> tuple[bool, ...]:
        """Which orders plans are measured in, strict (True) or not, and which comes first.

        Out of order a step can take far more than the one before, and near a hard limit that can be a crash.
        """
        if not self.ordered:
            return (False,)
        return (True,) if self.near_limit or self.strict else (False, True)

    @property
    def first_target_bytes(self) -> int:
        """What the first schedule has to fit: the goal, less what the allocator is expected to lose."""
        if not self.measured:
            return self.budget_bytes
        if self.modelled:
            return self.goal_bytes
        policy, activations = self.policy, max(0, self.budget_bytes - self.constant_bytes)
        return self.with_room(int(policy.goal * self.budget_bytes) - int(policy.waste * activations))

    def first_targets(self, target: int) -> dict[bool, int]:
        """What the first schedules have to fit, in each order: where the allocator has a model, both are looked at."""
        if not self.modelled:
            return {self.orders[0]: target}
        return dict.fromkeys(sorted(self.orders, reverse=True), target)

    def with_room(self, target: int) -> int:
        """A target that leaves room for what was not predicted, where running out of memory can be a crash."""
        if self.modelled:
            return target
        room = self.constant_bytes + int(self.policy.room * max(0, self.device_bytes - self.constant_bytes))
        return min(target, room) if self.near_limit else target

    def order(self, peak_bytes: int, strict: bool) -> Order:
        """The order in which a schedule with that predicted peak is emitted.

        The worst order may come in any step, though the measured ones did not show it. So the allocator's pieces have
        to fit beside it.
        """
        if strict:
            return Strict()
        if not self.measured:
            return Within(peak_bytes)
        pieces = self.policy.pieces * max(0, self.budget_bytes - self.constant_bytes)
        loose = int(self.policy.loose * peak_bytes)
        return Within(max(peak_bytes, min(loose, int(self.policy.sure * self.budget_bytes - pieces))))
