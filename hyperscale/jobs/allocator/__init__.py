"""The allocator: grants the cores of a datacenter to job leaders.

Glossary:

- *request*: a job leader asks for cores, for a workflow or for a new attempt of one part. A
  request waits in the queue until it is granted, released or no longer repeated.
- *grant*: the cores a request got, on one or more workers.
- *share*: one worker's part of a grant.
- *reservation*: granted cores that their worker does not yet announce as held.
- *recovery*: a request for a new attempt of a part whose worker is lost.
"""
