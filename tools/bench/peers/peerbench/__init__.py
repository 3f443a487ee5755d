"""Saving beside a training loop, by ckptd and by what people use today. Times are seconds, sizes bytes.

The driver (compare.py) makes visits: the ranks of one job that saves by one peer, each a process with the interpreter
of that peer's environment (worker.py), told what to do over a pipe.
"""
