"""The ledger on a real node: its store, its messages, its clock.

`service` runs the core and answers proposals and reads; `routing` brings them to whoever leads;
`joining` finds or founds the tier; `managing` carries out what placement decides; `transfer`
brings snapshots and history to whoever lacks them; `operator` answers operators (`questions`);
`peers` is how nodes reach each other; `duty` is all of it as a part of the node.
"""
