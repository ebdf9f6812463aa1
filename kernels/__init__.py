"""The three fused operations of the trainer; each file holds one, from its mathematics to its autograd."""
