"""Heads: what judges one tensor of the model."""
