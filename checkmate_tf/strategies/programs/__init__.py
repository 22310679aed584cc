"""Programs over problem (9): as it is, relaxed, rounded, and what bounds it."""
