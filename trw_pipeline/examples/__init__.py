"""Runnable examples on real data."""
