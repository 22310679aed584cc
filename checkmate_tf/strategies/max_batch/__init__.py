"""The largest batch as a program: linear, and quadratic as published."""
