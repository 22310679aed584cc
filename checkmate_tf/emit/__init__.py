"""The static rematerialized graph: a traced step emitted again in the order of a plan."""
