"""The gate that owns the global jobs of a group brings them forward."""
