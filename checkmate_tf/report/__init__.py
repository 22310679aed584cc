"""What was asked, predicted, proven and measured."""

from .report import Attempt, Peak, Report

__all__ = ["Attempt", "Peak", "Report"]
