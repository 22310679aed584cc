"""What may be planned: a traced step as nodes with costs, and which of its gradients read codes."""
