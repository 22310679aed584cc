"""What a memory allows: the largest batch that trains in it, by proof and by trial, and what each budget costs."""
