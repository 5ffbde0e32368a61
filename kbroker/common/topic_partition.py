"""The key of every table of partitions: topic name and partition index."""

from __future__ import annotations

from typing import TypeAlias

TopicPartition: TypeAlias = tuple[str, int]
"""A plain tuple: one is made for every partition of every request (`kclient.types.TopicPartition` is one)."""
