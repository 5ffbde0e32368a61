"""The transactions of a partition, as its leader begins and ends them (KIP-98, KIP-890).

Theory of operation
===================
The log shows which transactions are open (`kbroker.log.core.log_transactions`) and the epochs of each producer. This is
what the leader knows besides, in memory only:

- the *number* of an open transaction, if it began here. The coordinator sends it with the verification and with the
  marker. So a late marker of an earlier transaction of the same producer epoch is recognised.
- the *verifications*: before the first batch of a transaction the leader verifies at the coordinator that the
  transaction is open and has this partition. A verification is valid only in the leader epoch in which it started, and
  only if no marker of that transaction arrived since. It is used until the batch is appended.

A marker

| | is |
|---|---|
| with a lower producer epoch, or a lower coordinator epoch, than the log has | refused |
| with a lower number than that of the open transaction | late: acknowledged, without an effect |
| with the number of the last marker in the log, or a lower one, while a transaction is open | the same |
| any other | appended, a second one, too: it ends the transaction, and a late Produce in an old epoch is refused |

A marker without an open transaction is appended as well, as in Kafka. An earlier leader may have a batch of the
transaction that was not replicated. It can lead again only with all that was acknowledged since, so it cuts the batch.

An ABORT of a client (KIP-664, `kafka-transactions.sh abort`) only ends the open transaction. With a later producer
epoch it would fence the producer, and with a later coordinator epoch the coordinator: see `client_abort`.

A higher number than that of the open transaction cannot occur as long as no marker is lost. The coordinator begins the
next transaction when this leader has acknowledged the marker of the former one. It ends the open transaction, which
would hang otherwise.

After a failover the number of an open transaction is not known. It is higher than that of the last marker of the
producer, which is in the marker itself, so in each replica's log. Each marker above that one ends it.

Invariants:
1. A batch begins a transaction only after a successful verification. Between the start of the verification and the
   append no marker of that transaction was accepted.
2. In a leader epoch, a batch of a producer that the log does not know may have to wait. It is not appended before a
   batch with a lower sequence that waits, or that was refused for a time. The lower one would be out of order for ever
   (KAFKA-14920).

In: batches, results of verifications, markers   Out: what to append, errors
Owner: replica.partition_transactions. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from kbroker.log.core.producer_state import ProducerStateEntry
from kclient.wire.error_codes import ErrorCode
from kclient.wire.errors import InvalidProducerEpoch, TransactionCoordinatorFenced

UNKNOWN_NUMBER: Final = -1
"""The number of a transaction where a message or the memory does not have it."""

MOST_REFUSED: Final = 1000
"""Verifications that are remembered after a failure, for invariant 2; the oldest are forgotten."""

_ANY_NUMBER: Final = 2**63
"""Greater than every number: a marker without one ends every verification."""


class EndTxnMarker(NamedTuple):
    """The end of a producer's transaction, as the coordinator sends it to a partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    number: int = UNKNOWN_NUMBER


class VerificationState(Enum):
    """How far a verification is."""

    PENDING = "pending"
    VERIFIED = "verified"
    REFUSED = "refused"
    """The result was an error that may pass, or was not valid any more; the next batch starts another verification."""


class VerificationStateEntry:
    """The verification of one producer's transaction, and its result."""

    __slots__ = (
        "_ended",
        "_on_completion",
        "error",
        "lowest_sequence",
        "number",
        "producer_epoch",
        "state",
    )

    def __init__(self, producer_epoch: int, lowest_sequence: int) -> None:
        self.producer_epoch = producer_epoch
        self.lowest_sequence = lowest_sequence
        """The lowest base sequence of the batches that wait or were refused."""
        self.state = VerificationState.PENDING
        self.number = UNKNOWN_NUMBER
        self.error = ErrorCode.NONE
        """Of the result."""
        self._ended = UNKNOWN_NUMBER
        """The highest number of the markers that arrived since the verification started."""
        self._on_completion: list[Callable[[], None]] = []

    def on_completion(self, call: Callable[[], None]) -> None:
        """Call *call* when the result is there, in the order of these calls."""
        if self.state is VerificationState.PENDING:
            self._on_completion.append(call)
        else:
            call()


class LeaderTransactions:
    """What the leader of a partition knows of its transactions besides the log, in one leader epoch."""

    __slots__ = ("_numbers", "_verifications")

    def __init__(self, previous: LeaderTransactions | None = None) -> None:
        """Begin a leader epoch; *previous* is that of the epoch before, if no other broker led since."""
        self._numbers: dict[int, int] = {} if previous is None else previous._numbers
        self._verifications: dict[int, VerificationStateEntry] = {}

    def number_of(self, producer_id: int) -> int:
        """Return the number of the producer's open transaction; `UNKNOWN_NUMBER` if it did not begin here."""
        return self._numbers.get(producer_id, UNKNOWN_NUMBER)

    # Batches

    def maybe_start_verification(
        self, producer_id: int, producer_epoch: int, sequence: int
    ) -> tuple[VerificationStateEntry, bool]:
        """Return the verification that a batch waits for, and whether its request is to be sent now.

        InvalidProducerEpoch if a batch of a later epoch has started one.
        """
        known = self._verifications.get(producer_id)
        lowest = sequence
        if known is not None:
            if producer_epoch < known.producer_epoch:
                raise InvalidProducerEpoch(
                    f"epoch {producer_epoch} of producer {producer_id} is over, {known.producer_epoch} is on"
                )
            if producer_epoch == known.producer_epoch:
                known.lowest_sequence = lowest = min(sequence, known.lowest_sequence)
                if known.state is not VerificationState.REFUSED:
                    return known, False
            del self._verifications[producer_id]
        entry = self._verifications[producer_id] = VerificationStateEntry(producer_epoch, lowest)
        return entry, True

    def complete_verification(
        self,
        producer_id: int,
        entry: VerificationStateEntry,
        error: ErrorCode,
        number: int,
        *,
        is_retriable: bool = False,
    ) -> None:
        """Handle the coordinator's result of *entry*; *is_retriable*: the next attempt may have another *error*."""
        entry.error, entry.number = error, number
        is_current = self._verifications.get(producer_id) is entry
        is_valid = is_current and (entry._ended == UNKNOWN_NUMBER or number > entry._ended)
        if error is ErrorCode.NONE and is_valid:
            entry.state = VerificationState.VERIFIED
        else:
            entry.state = VerificationState.REFUSED
            if is_current and error is not ErrorCode.NONE and not is_retriable:
                del self._verifications[producer_id]
            self._forget_refused()
        waiting, entry._on_completion = entry._on_completion, []
        for call in waiting:
            call()

    def verified(self, producer_id: int, producer_epoch: int) -> VerificationStateEntry | None:
        """Return the verification by which a batch of the producer may begin a transaction now."""
        found = self._verifications.get(producer_id)
        if found is None or found.producer_epoch != producer_epoch:
            return None
        return found if found.state is VerificationState.VERIFIED else None

    def began(self, producer_id: int) -> None:
        """Handle the append of a batch that began a transaction."""
        verification = self._verifications.pop(producer_id, None)
        if verification is None or verification.state is not VerificationState.VERIFIED:
            return  # transaction.partition.verification.enable is false
        if verification.number != UNKNOWN_NUMBER:
            self._numbers[producer_id] = verification.number

    def _forget_refused(self) -> None:
        if len(self._verifications) <= MOST_REFUSED:
            return
        for producer_id, each in self._verifications.items():
            if each.state is VerificationState.REFUSED:
                del self._verifications[producer_id]
                return

    # Markers

    def takes(
        self,
        marker: EndTxnMarker,
        known: ProducerStateEntry | None,
        *,
        is_open: bool,
        ended: int = UNKNOWN_NUMBER,
    ) -> bool:
        """Accept *marker*; return whether it is to be appended.

        *known* is the state of the producer in the log, where its transaction *is_open* or not; *ended* is the number
        in its last marker there. Raise InvalidProducerEpoch or TransactionCoordinatorFenced.
        """
        if known is not None:
            _check_epochs(marker, known)
        self._end_verification(marker)
        if not is_open:
            return True
        if UNKNOWN_NUMBER not in (ended, marker.number) and marker.number <= ended:
            return False  # the open transaction is a later one
        number = self.number_of(marker.producer_id)
        return UNKNOWN_NUMBER in (number, marker.number) or marker.number >= number

    def _end_verification(self, marker: EndTxnMarker) -> None:
        """Invalidate a verification of the transaction that *marker* ends."""
        entry = self._verifications.get(marker.producer_id)
        if entry is None or marker.producer_epoch < entry.producer_epoch:
            return
        ended = _ANY_NUMBER if marker.number == UNKNOWN_NUMBER else marker.number
        if entry.state is VerificationState.PENDING:
            entry._ended = max(entry._ended, ended)
        elif entry.state is VerificationState.REFUSED or ended >= entry.number:
            del self._verifications[marker.producer_id]

    def ended(self, producer_id: int) -> None:
        """Handle the append of a marker."""
        self._numbers.pop(producer_id, None)


def client_abort(
    marker: EndTxnMarker, known: ProducerStateEntry | None, open_epoch: int
) -> EndTxnMarker:
    """Return the ABORT that a leader takes from a client that is no broker, of the transaction in *open_epoch*.

    *known* is the state of the producer in the log. A later coordinator epoch than that of its last marker counts as
    that one, before the first marker as 0. Raise InvalidProducerEpoch for an epoch that the producer does not have.
    """
    latest = open_epoch if known is None else max(open_epoch, known.epoch)
    if marker.producer_epoch != latest:
        raise InvalidProducerEpoch(
            f"an ABORT of epoch {marker.producer_epoch} of producer {marker.producer_id}:"
            f" its open transaction has epoch {latest}"
        )
    coordinator_epoch = max(0, -1 if known is None else known.coordinator_epoch)
    return marker._replace(coordinator_epoch=min(marker.coordinator_epoch, coordinator_epoch))


def _check_epochs(marker: EndTxnMarker, known: ProducerStateEntry) -> None:
    if marker.producer_epoch < known.epoch:
        raise InvalidProducerEpoch(
            f"a marker of epoch {marker.producer_epoch} of producer {marker.producer_id}: {known.epoch} is on"
        )
    if marker.coordinator_epoch < known.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"a marker of coordinator epoch {marker.coordinator_epoch} for producer {marker.producer_id}:"
            f" {known.coordinator_epoch} is on"
        )
