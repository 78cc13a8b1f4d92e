"""Gates, the owners of global jobs, and datacenters that run them."""
