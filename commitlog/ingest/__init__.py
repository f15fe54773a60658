"""The main job: processes write, Spark builds a table meanwhile, a verdict counts every message.

`job.py` runs it in the user's terminal and stays light. The producers (`sampling.py`, `feeding.py`)
and the Spark query (`query.py`) are processes of their own. A socket (`link.py`) ties each of them
to the job.
"""
