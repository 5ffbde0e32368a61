"""A whole cluster in one process, played from a seed: real brokers in a simulated environment with faults.

What is real and what is not
============================
`node.py` starts `kbroker.app.broker.Broker`, the broker itself: replicas, fetchers, ISR writer, controller,
log, recovery, the APIs, the protocols of both ends of every connection, our ZooKeeper session with its watches.
A `World` gives it what it would otherwise take from the machine: `clock.py` (time, threads), `network.py`
(connections), `zookeeper.py` (kazoo's thread and the ensemble behind it), `tests/kit/simulated_disk.py` (files,
which a power loss may take).

`script.py` draws from a seed what happens: brokers are killed, paused, cut off, lose power (one, several, all at
once), are shut down; disks are wiped, all or one of two, refuse writes, are full; connections break; controllers are
deposed or unseated and their orders arrive late, perhaps when a topic is another one of the same name; sessions
expire, answers of ZooKeeper are lost, its servers lag or trail; clients produce, read, make, delete and trim topics,
some with retention, some with unclean election, some with flush.messages=1; producers send what must be refused.
`run.py` plays it; `predicates.py` looks at the whole cluster after every step, by the exact promise of `losses.py`
where disks forget, and at the end, when everything was healed, waits for the cluster to be whole again, with an
operator's help where only an operator can decide. `shrink.py` makes a failing script short. `mutants/` holds known
bugs, and `test_mutants.py` shows that they are found.

Every fourth seed has consumer groups (`group_stories.py`): members (`members.py`) join, commit, leave, crash, pause
and come back while their coordinator is deposed, paused or cut off. `group_rules.py` judges every write below
`/consumers` and every answer.

Every fifth seed has transactions (`transaction_stories.py`): producers (`transactional_producers.py`) commit, abort,
die, sleep, are replaced under their transactional id, while coordinators and leaders fail. `transaction_rules.py`
judges every write below `/transactions`, every committed marker, and what a reader with read_committed gets.

`mirror.py` plays two clusters and the mirror between them; `mirror_script.py` draws what happens there.

One seed is one story: no wall clock, no thread, no set of strings or objects is iterated over, one source of chance.

    python -m tests.simulation --seed 17 --log      one story, with a log
    python -m tests.simulation --seeds 1..2000 --jobs 2
    python -m tests.simulation --mirror --seeds 1..500
    make soak                                       100,000 seeds; SOAK_ARGS=--mirror for those of the mirror

A bug it found is fixed at its root, and its script kept in `scripts/`.
"""
