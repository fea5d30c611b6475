"""Pure functions over one batch: its length, parts of it, several as one, on a device."""
