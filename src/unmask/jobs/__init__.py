"""What people run: each job makes the ingredients of a run, and `train/run.py` carries it out."""
