"""Jobs over many datacenters, without I/O.

`committed` is what a group of gates commits about global jobs; `owner` brings the global jobs of a
group forward; `datacenters` watches datacenters and chooses among them; `slices` splits a job over
them; `reporter` is the datacenter's side. `messages` is what gates and managers send each other.
"""
