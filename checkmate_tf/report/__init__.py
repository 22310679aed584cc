"""What was asked, predicted, proven and measured."""

from .memory_use import MemoryUse
from .paged import Paged, paged_of
from .report import Attempt, Peak, Report

__all__ = ["Attempt", "MemoryUse", "Paged", "Peak", "Report", "paged_of"]
