"""Between nodes: frames, messages, sealing, handshake, RPC peers, admission.

Below everything that talks: it imports only `errors` and `config`. Logic takes an explicit
`now_s` and owns no socket; `peer` and what is named there is the asyncio shell around it.
"""
