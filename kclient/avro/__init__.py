"""Avro values: serializers over fastavro, framed so that a reader finds the writer's schema.

Two frames with different first bytes:

    00 + schema id (4 bytes, big-endian) + body      Confluent's, for schemas with an id in a registry
    c3 01 + fingerprint (8 bytes) + body             Avro's single-object encoding: needs no registry, the
                                                     fingerprint is the CRC-64-AVRO of the schema's canonical form

Evolution: a reader with older or newer schemas as *writers* reads their values into its own schema, by Avro's rules
(defaults, promotions, aliases).
"""

from __future__ import annotations

from kclient.avro.serializers import (
    AvroDeserializer,
    AvroSerializer,
    Frame,
    Schema,
    fingerprint,
    frame_of,
)

__all__ = ["AvroDeserializer", "AvroSerializer", "Frame", "Schema", "fingerprint", "frame_of"]
