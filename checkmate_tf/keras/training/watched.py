"""Watches the device while a model trains, and plans again when something else takes the room of its plan.

That is what `fit` puts on the device, or what lies there in the way: it is looked at before training. Or it is what
nobody foresaw, and a step took more than the budget.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import tensorflow as tf

from ...errors import InfeasibleBudgetError
from ...fit.options import Given
from ...fit.pipeline import placed_bytes, plan_again
from ...fit.planned import PlannedStep, expected_peak_bytes
from ...fit.policy import POLICY
from ...report import Report
from ...units import format_bytes
from ..frameworks import put
from .plans import Plans

__all__ = ["Watched"]

log = logging.getLogger("checkmate_tf")


class Watched(Plans):
    """Plans that stay within their budget while a model trains, or are made again.

    Attributes
    ----------
    begins : bool
        Whether `fit` may have put data on the device since the last step.
    told_between : bool
        Whether the log has said that what runs between steps takes more than the budget.
    unfit : int
        Least peak, bytes, for which no plan could be made.
    """

    begins = True
    told_between = False
    unfit = 0

    def remake(self) -> None:
        """Make the train function anew, for a plan that was made: what it trains stays."""
        raise NotImplementedError

    def _forget_plans(self) -> None:
        self.unfit = 0
        super()._forget_plans()

    def make_room(self, batches: int = 0) -> None:
        """Plan again before training, if what has come to the device since (the data of `fit`) will fill the budget.

        Parameters
        ----------
        batches : int
            How many more are kept ready than the plan was made for.

        Raises
        ------
        InfeasibleBudgetError
            If no plan leaves room for it, and the allocator has a hard limit: training would run out of memory.
        """
        device = self._device()
        if tf.inside_function() or not (self.options.verify and device.measurable):
            return
        if self.key not in self.plans or not self.is_current():
            return  # it will be planned with what is on the device
        key, planned = self.key, self.plans[self.key]
        report, self.begins = planned.report, True
        device.forget_peak(max(report.budget_bytes, report.training_peak_bytes or 0))  # something else ran meanwhile
        if report.replanned >= POLICY.plans_again:  # no reason to refuse what may train as it did
            return
        more = batches * report.input_bytes
        if report.measured_peak_bytes is None:
            return
        peak = expected_peak_bytes(planned, device) + more
        if not POLICY.full * report.budget_bytes < peak < (self.unfit or peak + 1):
            return
        log.info("%s: %s are expected while training", self.model.name, format_bytes(peak))
        try:
            self._plan_again(key, peak, expected=True, batch_bytes=more)
        except InfeasibleBudgetError as error:
            if peak > report.budget_bytes and POLICY.beyond_limit(peak, device.limit_bytes, device.is_cpu):
                raise InfeasibleBudgetError(
                    f"with its data the training of {self.model.name!r} is expected to need {format_bytes(peak)} of "
                    f"the {format_bytes(device.limit_bytes)} that its allocator may take, and there is no smaller plan "
                    f"({error}); give fit a tf.data.Dataset that reads batch by batch, and ends in prefetch(1) with "
                    "compile(..., prefetch=1), or lower the batch size",
                    report.budget_bytes,
                    peak,
                    proven=False,
                ) from None
            log.warning("%s: no plan leaves room for what shares the device: %s", self.model.name, error)
            self.unfit = peak
            return
        put(self.model, "train_function", None)

    def _are_given(self, given: Given) -> bool:
        """Plan again if batches are held by the caller now, or no longer, and the plan does not fit then.

        Returns whether it was.
        """
        if given == self.options.given or not self._shares_memory():
            return False
        self.options = replace(self.options, given=given)
        planned = self.plans.get(self.key)
        if planned is None or planned.given == given or not self.is_current():
            return False
        how = "held by the caller" if given else "made in the step"
        return self._place_again(planned, f"batches are {how}", "where batches are given so")

    def _lies_in_the_way(self) -> bool:
        """Plan again if the data of `fit` lie where values of the plan would, so that it does not fit.

        Returns whether it was.
        """
        device, planned = self._device(), self.plans.get(self.key)
        if planned is None or not self.is_current() or not self.options.verify or not device.measurable:
            return False
        report = planned.report
        moved = abs(device.foreign_bytes(planned.program.variable_bytes) - report.foreign_bytes)
        if self.distribution is not None or moved <= POLICY.moved * report.budget_bytes:
            return False
        return self._place_again(planned, "other data lie on the device", "beside what lies on the device")

    def _place_again(self, planned: PlannedStep, why: str, where: str) -> bool:
        """Plan again if the plan does not fit as the allocator's model places it now. Returns whether it was."""
        peak, report = placed_bytes(planned, self.options), planned.report
        if peak is None or POLICY.still_fits(peak, report.sure_bytes or 0, report.budget_bytes):
            return False
        log.info("%s: %s: %s are expected", self.model.name, why, format_bytes(peak))
        try:
            self._plan_again(self.key, peak, expected=True, placed=True)
        except InfeasibleBudgetError as error:
            log.warning("%s: no plan fits %s: %s", self.model.name, where, error)
            return False
        self.remake()
        return True

    def watch(self) -> None:
        """Note the device's peak while training. If it is over the budget, plan again with the difference taken off."""
        device = self._device()
        if not (self.options.verify and device.measurable and self.key in self.plans):
            return
        key, planned = self.key, self.plans[self.key]
        report, peak = planned.report, self.peaks.of_step()
        if peak <= (report.training_peak_bytes or 0):
            return
        if peak > report.budget_bytes >= (report.training_peak_bytes or 0):
            log.warning(
                "%s: %s were allocated while training, over the budget of %s (the plan was %s; %sinput pipeline and "
                "what callbacks hold share the device)",
                self.model.name,
                format_bytes(peak),
                format_bytes(report.budget_bytes),
                _measured(report),
                "" if report.strict or planned.jit_compile else "steps out of order differ; ",
            )
            self.peaks.keep(peak)
            try:
                self._outgrown(key, peak)
            except InfeasibleBudgetError as error:
                log.warning("%s: no other plan: %s", self.model.name, error)
            else:
                self.remake()
                return
        self.plans[key] = replace(planned, report=replace(report, training_peak_bytes=peak))
        put(self.model, "checkmate", self.report)

    def _begin_step(self) -> None:
        """Forget the peak of what ran since the last step: evaluation, say, which is over when a step begins.

        No other plan would lower it, so it is warned of if it is over the budget, once.
        """
        device = self._device()
        if not (self.options.verify and device.measurable):
            return
        peak = self.peaks.since_step()
        if self.key not in self.plans or self.told_between:
            return
        report = self.plans[self.key].report
        stepped = report.training_peak_bytes is not None  # what came before the first step is not between two
        if not stepped or peak <= report.budget_bytes:
            return
        self.told_between = True
        log.warning(
            "%s: %s were allocated between two steps, over the budget of %s: by evaluation, callbacks or data. No plan "
            "of the step changes that; a smaller validation_batch_size= may",
            self.model.name,
            format_bytes(peak),
            format_bytes(report.budget_bytes),
        )

    def begin_peak(self) -> None:
        """Count the device's peak from now on. What ran since the last step is looked at before."""
        self._begin_step()
        self.peaks.begin()

    def peak_bytes(self) -> int | None:
        """The device's peak since `begin_peak`; None where the allocator keeps no statistics."""
        return self.peaks.most()

    def _outgrown(self, key: Any, peak: int) -> None:
        """Replace the plan at `key`, under which the device took more than the budget. Errors as `_plan_again`."""
        self._plan_again(key, peak)

    def _plan_again(
        self, key: Any, peak: int, expected: bool = False, batch_bytes: int = 0, placed: bool = False
    ) -> None:
        """Replace the plan at `key` by one that leaves room for all else that training allocates.

        Raises
        ------
        InfeasibleBudgetError
            If there is none, or enough were tried.
        """
        planned = self.plans[key]
        tried, budget = planned.report.replanned, planned.report.budget_bytes
        if tried >= POLICY.plans_again:
            raise InfeasibleBudgetError(
                f"the plan was made anew {tried} times for what else is on the device, and never kept the budget of "
                f"{format_bytes(budget)} while training; raise it to {format_bytes(peak)} or lower the batch size",
                budget,
                peak,
                proven=False,
            )
        again = self.plans[key] = plan_again(
            planned, peak, self.options, self.distribution, expected, batch_bytes, placed
        )
        self.earlier.append(again.known)
        put(self.model, "checkmate", self.report)
        log.warning(
            "%s: planned again: %s predicted, %s",
            self.model.name,
            format_bytes(again.schedule.peak_bytes),
            _measured(again.report),
        )

    def _shares_memory(self) -> bool:
        """Whether batches lie in memory that plans are measured in."""
        return self.distribution is None and self.options.verify and (d := self._device()).is_cpu and d.measurable


def _measured(report: Report) -> str:
    """What the log says of a plan's measured peak."""
    peak = report.measured_peak_bytes
    return "not measured" if peak is None else f"measured at {format_bytes(peak)}"
