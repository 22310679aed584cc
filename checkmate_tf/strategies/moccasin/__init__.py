"""Moccasin: retention intervals in CP-SAT (Bartan et al., ICML 2023)."""
