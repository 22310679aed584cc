"""Pictures of memory and of schedules, drawn with matplotlib."""
