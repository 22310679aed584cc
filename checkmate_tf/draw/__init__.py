"""Pictures of memory, of schedules, and of graphs with their costs, drawn with matplotlib."""
