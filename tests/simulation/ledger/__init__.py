"""The ledger in the simulator: real cores and job machines on crashable disks and bad links.

`store`      a disk that forgets what was not synced
`observed`   a core that tells what it does
`program`    one node: what `hyperscale.ledger.server` does with sockets, on virtual time
`client`     who submits, cancels, finishes and reads, and remembers what it was told
`monitor`    what must hold after every event
`schedules`  profiles of what goes wrong, and the run of one seed
`mutants`    broken rules that must be noticed
"""
