"""Measurements of the package beside its peers; see README.md."""
