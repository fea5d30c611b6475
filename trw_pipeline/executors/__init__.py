"""Who runs jobs. Imports neither torch nor the sequences."""
