"""What a gate does: probes datacenters, owns global jobs, answers clients."""
