"""The algebra: every recipe and verb in `sequence`, one engine file for each iterator, and the samplers."""
