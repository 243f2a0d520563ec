"""The jobs of users: each makes the ingredients of a run, which `train/run.py` carries out."""
