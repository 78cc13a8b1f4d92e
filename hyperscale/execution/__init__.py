"""Running one workflow part on one core: the executor process, its protocol, its supervisor.

`protocol` is what the two processes say to each other, over `channel`. The parent's side:
`supervisor`, `process`, `overdue`, `descent`. The child's: `executor`, `service`, `lease`,
`capture`, and the runtime of a part: `part`, `host`, `vu`, `static`, `calls`, `outcomes`, `tally`,
`pulse`. What travels to it: `bundle`, `imports`, `values`. Nothing here knows how a workflow is
split, merged or shown.
"""
