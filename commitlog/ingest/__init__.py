"""The main job: processes write, Spark turns it into a table while you watch, and a verdict counts
every message.

`job.py` runs it in the user's terminal and stays light; the producers (`sampling.py`, `feeding.py`)
and the Spark query (`query.py`) are processes of their own, tied to it by a socket (`link.py`).
"""
