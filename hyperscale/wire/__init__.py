"""Communication between nodes: frames, messages, sealing, handshake, calls, admission.

`session` and everything below it take the time as `now_s` and own no socket; `server`,
`listener`, `connection`, `call_runner` and `link` are the asyncio shell around them.

Words: a *call* is a request with a reply, or a one-way message without one; a *stream* is a reply
in items. A *link* is a lasting relation to one address, over changing connections. *Clients* and
*operators* are external callers, as opposed to the nodes of the cluster.
"""
