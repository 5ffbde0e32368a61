"""Fetch (api key 1), versions 4-17, hand-written: encodes records as file slices, decodes them as views of the frame.

v4 isolation level, aborted transactions (KIP-98) · v5 log start offset · v7 sessions (KIP-227) · v9 current leader
epoch (KIP-320) · v10 zstd (KIP-110) · v11 rack id, preferred read replica (KIP-392) · v12 flexible, last fetched epoch,
diverging epoch and current leader (KIP-595) · v13 topic ids instead of names (KIP-516) · v14
OFFSET_MOVED_TO_TIERED_STORAGE · v15 replica id and epoch in a tagged field (KIP-903) · v16 node endpoints (KIP-951) ·
v17 the follower's directory id in a tagged field (KIP-853), ignored

Frames have no length prefix. Decoding raises MalformedMessage only.
"""

from kclient.wire.fetch_request import (
    API_KEY,
    FINAL_SESSION_EPOCH,
    FIRST_FLEXIBLE,
    FIRST_WITH_TOPIC_IDS,
    INITIAL_SESSION_EPOCH,
    MAX_FETCH_BYTES,
    MAX_SESSION_EPOCH,
    VERSIONS,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    decode_request,
    encode_request,
    next_session_epoch,
)
from kclient.wire.fetch_response import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
    Part,
    SizedPart,
    decode_response,
    encode_response,
    part_size,
)
from kclient.wire.leaders import LeaderIdAndEpoch, NodeEndpoint

__all__ = [
    "API_KEY",
    "FINAL_SESSION_EPOCH",
    "FIRST_FLEXIBLE",
    "FIRST_WITH_TOPIC_IDS",
    "INITIAL_SESSION_EPOCH",
    "MAX_FETCH_BYTES",
    "MAX_SESSION_EPOCH",
    "VERSIONS",
    "AbortedTransaction",
    "EpochEndOffset",
    "FetchPartition",
    "FetchPartitionResponse",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchTopicResponse",
    "ForgottenTopic",
    "LeaderIdAndEpoch",
    "NodeEndpoint",
    "Part",
    "SizedPart",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "next_session_epoch",
    "part_size",
]
