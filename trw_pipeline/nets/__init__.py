"""What torch does not have for networks; knows nothing of training."""
