"""One module for each system that results can be sent to: its configuration and its backend.

A module is imported when its configuration is first named, its driver when it connects.
`reporter.BACKENDS` lists them all.
"""
