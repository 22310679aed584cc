"""MONeT and its like: implementations of operators chosen together with the schedule."""
