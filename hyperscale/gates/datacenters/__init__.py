"""Datacenters as gates see them: probes, health classes, and the choice for a job."""
