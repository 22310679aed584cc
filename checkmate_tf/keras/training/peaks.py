"""The most that a device allocates while a model trains: in its steps, and between them.

An allocator keeps one record, of the most since it was last forgotten. To measure a plan forgets it, and so does a look
at what ran between two steps. What it was before is kept here.
"""

from __future__ import annotations

from collections.abc import Callable

from ...device.measure import Device

__all__ = ["Peaks"]


class Peaks:
    """Peaks of a device since `begin`.

    Parameters
    ----------
    device : callable () -> Device
        The device that trains now.
    """

    def __init__(self, device: Callable[[], Device]) -> None:
        self._device = device
        self._kept = 0  # bytes, of what was forgotten since `begin`
        self._step: int | None = None  # the record when the last step ended: another one shows that something ran since

    def keep(self, peak: int | None = None) -> None:
        """Keep a peak in bytes, by default the allocator's record, which something is about to forget."""
        device = self._device()
        if device.measurable:
            self._kept = max(self._kept, device.peak_bytes() if peak is None else peak)

    def of_step(self) -> int:
        """The peak in bytes of the step that has just ended."""
        self._step = self._device().peak_bytes()
        return self._step

    def since_step(self) -> int:
        """The peak in bytes of what ran since the last step, which is kept and forgotten; 0 if nothing did."""
        peak = self._device().forget_since(self._step)
        self.keep(peak)
        return peak

    def forget(self) -> None:
        """Keep the record, and let the allocator begin a new one."""
        device = self._device()
        if device.measurable:
            self.keep()
            device.forget_peak(0)

    def begin(self) -> None:
        """Count from now on."""
        device, self._kept, self._step = self._device(), 0, None
        if device.measurable:
            device.forget_peak(0)

    def most(self) -> int | None:
        """The peak in bytes since `begin`; None where the allocator keeps no statistics."""
        device = self._device()
        return max(self._kept, device.peak_bytes()) if device.measurable else None
