"""Fault injection in real training processes: kills, full disks, dead workers, NaN.

Each file injects one kind of fault, a given number of times. `make faults` runs all of them with
large counts, the tests with small ones.
"""
