"""Live streams: the statistics of a run, sent elsewhere at an interval while it runs.

`snapshot` is what is sent, `hub` sends it, and one module for each protocol encodes it.
"""
