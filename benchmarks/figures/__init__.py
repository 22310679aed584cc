"""Scripts that reproduce figures and tables of the papers."""
