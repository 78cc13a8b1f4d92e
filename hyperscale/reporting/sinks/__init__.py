"""Where results can go.

A backend module defines `<Name>Config` with a method `open_sink`, which returns a `Sink`. It
imports what it needs beyond the standard library in `connect`: naming a backend costs nothing, and
a missing driver is reported only to those who use it. `reporter.BACKENDS` lists every backend.
"""
