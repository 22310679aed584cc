"""The baselines of Checkmate, Table 1: keep-sets by rule, and the least recomputation that each needs."""
