"""TWRemat: divide and conquer on a tree decomposition (Kumar et al., NeurIPS 2019)."""
