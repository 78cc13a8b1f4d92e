"""Where results can go, one module per backend.

A backend module defines `<Name>Config` and `open_sink(config)`, which returns a `Sink`. It
imports what it needs beyond the standard library in `connect`, so that naming a backend
costs nothing and a missing driver is reported only to those who use it. Its row in
`reporter.BACKENDS` makes it known.
"""
