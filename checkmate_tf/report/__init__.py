"""What was asked, predicted, proven and measured."""

from .report import Attempt, Report

__all__ = ["Attempt", "Report"]
