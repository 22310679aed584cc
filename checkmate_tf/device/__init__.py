"""The device that trains: what its allocator says, and how its memory is laid out before a step.

measure        which device, its limit, and the real peak over steps that are undone
examples       data to run a step on
layout         one piece of memory for the CPU's allocator, and reserves in it
distribution   several devices that run one plan
process        children that train under a hard limit, watched
in_child       what such a child tells its parent
"""
