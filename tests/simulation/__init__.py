"""A whole cluster in one process, played from a seed: real brokers in a simulated environment with faults.

What is real and what is not
============================
`node.py` starts `kbroker.app.broker.Broker`, the broker itself: replicas, fetchers, ISR writer, controller,
log, recovery, the APIs, the protocols of both ends of every connection, our ZooKeeper session with its watches.
A `World` gives it what it would otherwise take from the machine: `clock.py` (time, threads), `network.py`
(connections), `zookeeper.py` (kazoo's thread and the ensemble behind it), `tests/kit/simulated_disk.py` (files,
which a power loss may take).

`script.py` draws from a seed what happens. Brokers are killed, paused, cut off, shut down, and lose power: one, several
or all at once. Disks are wiped, refuse writes, or are full: all of a broker, or one of two. Connections break.
Controllers are deposed or lose their znode, and their requests arrive late, perhaps for another topic of the same name.
Sessions expire, answers of ZooKeeper are lost, its servers lag or trail. Clients produce, read, create, delete and trim
topics: some with retention, some with unclean election, some with flush.messages=1. Producers send what must be
rejected.

`simulation.py` plays a script. `predicates.py` checks the whole cluster after every step; `losses.py` has the exact
promise where disks lose data. At the end all faults are healed, and the simulation waits until the cluster is whole
again, with an operator's help where only an operator can decide. `shrink.py` makes a failing script short. `mutants/`
holds known bugs, and `test_mutants.py` shows that they are found.

Every fourth seed has consumer groups (`group_events.py`): members (`members.py`) join, commit, leave, crash, pause
and come back while their coordinator is deposed, paused or cut off. `group_rules.py` judges every write below
`/consumers` and every answer.

Every fifth seed has transactions (`transaction_events.py`): producers (`transactional_producers.py`) commit, abort,
crash, pause, are replaced under their transactional id, while coordinators and leaders fail. `transaction_rules.py`
judges every write below `/transactions`, every committed marker, and what a reader with read_committed gets.

`mirror.py` plays two clusters and the mirror between them, and `mirror_script.py` draws what happens there. `run.py`
chooses between the two simulations.

A seed gives one trace: no wall clock, no thread, no iteration over a set of strings or objects, one source of chance.

    python -m tests.simulation --seed 17 --log      one seed: its trace, with the brokers' logs
    python -m tests.simulation --seeds 1..2000 --jobs 2
    python -m tests.simulation --mirror --seeds 1..500
    make soak                                       100,000 seeds; SOAK_ARGS=--mirror for those of the mirror

A bug it found is fixed at its root, and its script kept in `scripts/`.
"""
