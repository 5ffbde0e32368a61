"""Chaos on real processes: clients that record every response, faults drawn from a seed, and a verdict.

``python -m tests.chaos --seed 7 --minutes 3 --out DIR [--scenario S1]``. A cluster (`cluster`) of three brokers and
ZooKeeper, every connection through a switchboard (`switchboard`) that can cut, slow and drop; workers (`worker`) with
clients of three libraries (`raw_client`, `other_clients`) write the history; faults (`faults`) are injected in the
order of a scenario (`scenarios`). At the end everything is healed and read to its end, the brokers stop, and the
checker, the audits and the figures are printed (`run`). One seed gives one schedule of faults; the machine decides at
which moment they act.
"""
