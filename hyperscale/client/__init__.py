"""`HyperscaleClient`: packing a test, submitting it to managers, following it, its results."""
