"""The allocator: grants the cores of a datacenter to job leaders."""
