"""What a group commits about jobs: the events of its log and the state they make.

Glossary. The *machine* applies *events*; every replica of a group does so in the same order. An
event that does not apply is *refused* and changes nothing. A *dispatch* gives an attempt to a
worker. A *revocation* ends an attempt that has no result; what it had reported stays as a
*segment*, and what it may have sent beyond that is a *gap* with an upper bound. A *checkpoint* says
how far a running attempt is. The *key* of a submission makes exactly one job; the *record* of an
ended job is kept in history.
"""
