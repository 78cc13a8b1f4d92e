"""Times that both sides of an executor count on, in seconds."""

REPORT_EVERY_S = 0.1
HISTOGRAMS_EVERY_S = 1.0

START_S = 60.0
"""What an executor gets to say that it is there. It takes a tenth of a second; on a machine
that is much too busy, many times that."""

TEARDOWN_S = 10.0
"""What teardown and Provide hooks of a part get, together."""

CUT_S = 0.5
"""What cancelled code gets to let go before it is left behind."""

SILENT_S = 2.0
"""A running executor reports ten times a second. One that says nothing for this long after
it should have stopped is not coming back: its code holds the interpreter."""

CLOSE_GRACE_S = 5.0
"""What an executor gets between being asked to leave and being killed."""
