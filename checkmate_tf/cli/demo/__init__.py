"""`checkmate-tf demo`."""
