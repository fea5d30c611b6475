"""Arrays in, files out."""
