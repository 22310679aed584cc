"""What was asked, predicted, proven and measured."""

from .memory_use import MemoryUse
from .report import Attempt, Peak, Report

__all__ = ["Attempt", "MemoryUse", "Peak", "Report"]
