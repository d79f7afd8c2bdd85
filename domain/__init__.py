"""The decisions of the server: who runs next, how a token is drawn, when a request ends.

Pure: no tensors, no I/O, no clock, no threads, no randomness.  Time, ids and seeds arrive
inside commands; what was decided leaves as events.
"""
