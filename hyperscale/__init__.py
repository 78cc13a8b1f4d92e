"""Load tests written as Python classes."""
