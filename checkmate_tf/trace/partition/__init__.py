"""How operations are put together to nodes.

- `classes.py`: which operations are worth deciding about, and which run as soon as they can;
- `memory.py`: what operations take, alone and together;
- `groups.py`: the operations that become ready together;
- `merged.py`: groups that are computed together, as keeping what is between them serves nothing;
- `trees.py`: sums and products that Grappler may rewrite together.
"""
