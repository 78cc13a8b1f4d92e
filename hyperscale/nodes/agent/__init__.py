"""The worker's agent on real processes, files and connections; `jobs.agent.core` decides."""
