"""What Keras users call, and what stands in for their training step."""
