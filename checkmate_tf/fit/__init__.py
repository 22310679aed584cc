"""Fits a plan to a device: solve, run, correct the target, solve again."""
