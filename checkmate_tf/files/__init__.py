"""What is kept in files: JSON read strictly and within bounds, graphs, answers and schedules."""
