"""Membership in the simulator: the shell around its core, its invariants, its schedules."""
