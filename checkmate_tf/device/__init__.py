"""The device that trains: what its allocator says, and how its memory is laid out before a step.

measure        which device, its limit, and the real peak over steps that are undone
feeding        data to run a step on, and how it is fed with it
host           the memory that this process may fill
layout         one piece of memory for the CPU's allocator, and reserves in it
distribution   several devices that run one plan
process        children that train under a hard limit, watched
in_child       what such a child tells its parent
"""
