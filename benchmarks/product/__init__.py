"""Scripts that measure this package: real training, its solver against others, and what its tests say."""
