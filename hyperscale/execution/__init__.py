"""Running one workflow part on one core: the executor process, its protocol, its supervisor.

`protocol` is what the two processes say to each other, `supervisor` the parent's side,
`executor` the child's; `part`, `vu`, `calls` and `tally` are the runtime inside the child.
Nothing here knows how a workflow is split, merged or shown.
"""
