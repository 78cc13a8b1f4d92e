"""Job leaders, the allocator and worker agents in one simulated datacenter."""
