"""How the memory of a CPU's allocator is laid out before a step, so that steps of one plan take the same.

region         one piece of memory; what was free before is divided
reserves       free chunks for batches and small values, apart from all other memory
chunks         chunks taken one by one
"""
