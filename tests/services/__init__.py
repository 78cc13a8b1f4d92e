"""Real servers for tests: on loopback, with their data in a temporary directory."""
