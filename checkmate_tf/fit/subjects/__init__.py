"""What may be planned: a traced step with costs; its gradients may read codes, its values may wait on the host."""
