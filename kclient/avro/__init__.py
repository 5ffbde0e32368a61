"""Avro values: serializers over fastavro, framed so that a reader knows which schema wrote the bytes.

Two frames, told apart by their first byte:

    00 + schema id (4 bytes, big-endian) + body      Confluent's, for schemas that a registry numbered
    c3 01 + fingerprint (8 bytes) + body             Avro's single-object encoding: needs no registry, the
                                                     fingerprint is the CRC-64-AVRO of the schema's canonical form

Evolution: a reader that is told older (or newer) schemas as *writers* reads what they wrote into its own schema, by
Avro's rules (defaults, promotions, aliases).
"""

from __future__ import annotations

from kclient.avro.serializers import AvroDeserializer, AvroSerializer, Schema, fingerprint

__all__ = ["AvroDeserializer", "AvroSerializer", "Schema", "fingerprint"]
