"""Why the model said so."""
