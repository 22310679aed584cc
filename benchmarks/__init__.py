"""Benchmarks: `figures/` reproduces papers, `product/` measures this package in use, `lib/` is what they share.

Each file of `figures/` and `product/` is a script, run from anywhere: `python benchmarks/figures/rounding.py`. It puts
the root of this checkout on Python's path, so that `benchmarks.lib` is found, and so is the package, installed or not.
"""
