"""Slurm's vocabulary: its words, forms and command lines, as pure functions.

Nothing here runs a command or reads a clock. What Slurm printed goes in, values come out; what shall be
run comes out as a tuple of separate arguments, to be quoted by whoever runs it.
"""
