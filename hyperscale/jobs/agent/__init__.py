"""The worker's agent: obeys job leaders within their fences and supervises what runs on a worker.

Glossary:

- *attempt*: one try to run a part of a workflow on this worker (`AttemptId`).
- *place*: the number of an executor of this worker. Places 0 ... cores - 1 are cores; executors
  at higher places share the cores with other attempts: first recoveries, which share with any,
  then attempts that share with others of their job.
- *lease*: the time until which an attempt may generate load; job leaders renew it.
- *fence*: the highest term seen of a group, and the highest attempt seen of a part; commands
  below a fence are refused.
- *tombstone*: a note that an attempt is over, so that its late commands are refused.
- *stamp*: a reading of the worker's own clock that a job leader returns with its next command.
"""
