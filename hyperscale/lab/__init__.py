"""A whole cluster on one machine: real node processes on loopback, and trouble made for them."""
