"""For tests of policies and of this library: a session on a simulated scheduler, with virtual time."""
