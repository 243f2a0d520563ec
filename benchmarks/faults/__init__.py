"""What a run survives, tried on real processes: kills, full disks, dead workers, NaN.

Each file has one kind of fault and a function that tries it so and so often; `make faults` runs
them all with large counts, the tests with small ones.
"""
