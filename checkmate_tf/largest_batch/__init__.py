"""The largest batch that trains in a memory: by proof, and by trial."""
