"""The simulator: sans-IO cores on virtual time, a seeded network, faults that replay exactly.

`kernel`     clock, event heap, hosts, processes, disks
`network`    datagrams and streams: loss, delay, duplication, reordering, cuts
`faults`     what goes wrong: random schedules and scripted ones, as data
`trace`      what happened, for people
`campaign`   many seeds: two phases each, a verdict, replay of a failing seed

It knows no core. A core comes as a `Program` (see `kernel`) with its invariants as a `Monitor`;
`tests/simulation/fleet` is how membership does it, and the pattern for the others.
"""
