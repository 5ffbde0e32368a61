"""The names of topics at the target, as the mirror's replication policy forms them: a prefix, or a form with {}. Pure.

The audit names a topic as the source does. ``east.`` is a prefix: `orders` is `east.orders` at the target. A form has
{} in the place of the name: with ``{}.from.east`` it is `orders.from.east`. No name of a topic has braces.

>>> name_at_target("{}.from.east", "orders"), name_in_audit("{}.from.east", "orders.from.east")
('orders.from.east', 'orders')
"""

from __future__ import annotations

PLACE = "{}"


def check_form(form: str) -> str:
    """Return *form*; raise ValueError if it is neither a prefix nor a form with one {}."""
    if form.count(PLACE) > 1 or {"{", "}"} & set(form.replace(PLACE, "")):
        raise ValueError(f"{form!r} is neither a prefix nor a form with one {PLACE} for the name")
    return form


def ends_of(form: str) -> tuple[str, str]:
    """Return what is before a name and what is behind it."""
    head, _, tail = form.partition(PLACE)
    return head, tail


def name_at_target(form: str, topic: str) -> str:
    """Return the name at the target of the audit's *topic*."""
    return topic.join(ends_of(form))


def name_in_audit(form: str, name: str) -> str | None:
    """Return the audit's name of the target's topic *name*; None if the name has another form."""
    head, tail = ends_of(form)
    if len(name) <= len(head) + len(tail) or not (name.startswith(head) and name.endswith(tail)):
        return None
    return name[len(head) : len(name) - len(tail)]


def sql_name_in_audit(form: str) -> str:
    """Return the SQL expression of the audit's name, from a column `topic` of names that have the form."""
    head, tail = ends_of(form)
    return f"substring(topic, {len(head) + 1}, length(topic) - {len(head) + len(tail)})"
