"""The worker's agent: runs attempts within their leases and answers for them."""
