"""The ledger on a real node: its store, its messages, its clock.

`service` runs the core and answers proposals and reads; `joining` finds or founds the tier;
`managing` carries out what placement decides; `peers` is how nodes reach each other.
"""
