"""The device that trains: its allocator measured, its memory set up, and trials in processes of their own."""
