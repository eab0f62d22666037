"""The operator process: kopf watches, a queue of pool keys, one level-triggered reconcile.

Read `reconcile.py` first. Everything is wired together in `app.py`.
"""
