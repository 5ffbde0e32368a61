"""G1c: transactions that each read what the other wrote. Edges are from the writer to the reader of a value.

Order of writes (ww) is no evidence: Kafka's transactions are not isolated in what they write.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.checker.anomaly import Anomaly
from tests.checker.derived import Derived
from tests.checker.history import Operation


def information_cycles(derived: Derived) -> Iterator[Anomaly]:
    """Find the circles of transactions (Tarjan, without recursion)."""
    transactions = [one for one in derived.operations if one.f == "txn" and one.outcome != "fail"]
    edges: dict[int, set[int]] = {id(one): set() for one in transactions}
    by_id = {id(one): one for one in transactions}
    for reader in transactions:
        for key, records in reader.polls():
            writes = derived.logs[key].writes if key in derived.logs else {}
            for _, value in records:
                write = writes.get(value)
                if write is not None and write.operation is not reader and id(write.operation) in edges:  # fmt: skip
                    edges[id(write.operation)].add(id(reader))
    for circle in _components(edges):
        members: list[Operation] = sorted(
            (by_id[one] for one in circle), key=lambda one: one.begun.i
        )
        yield Anomaly(
            "G1c",
            f"{len(members)} transactions read in a circle what the others wrote",
            tuple(i for one in members for i in one.events),
        )


def _components(edges: dict[int, set[int]]) -> Iterator[list[int]]:
    """Yield the strongly connected components of more than one node."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in edges:
        if root in number:
            continue
        work = [(root, iter(edges[root]))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, following = work[-1]
            for other in following:
                if other not in number:
                    number[other] = low[other] = len(number)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(edges[other])))
                    break
                if other in on_stack:
                    low[node] = min(low[node], number[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    component = []
                    while True:
                        other = stack.pop()
                        on_stack.discard(other)
                        component.append(other)
                        if other == node:
                            break
                    if len(component) > 1:
                        yield component
