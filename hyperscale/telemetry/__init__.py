"""What a node tells its operators: log events, metrics, and the HTTP endpoint that serves them."""
