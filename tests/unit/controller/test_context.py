"""What a restarted broker still has, by the controller's context."""

from kbroker.common.isr_epochs import void
from kbroker.common.log_dir_integrity import LogDirCondition, LogDirIntegrity, broker_epochs
from kbroker.controller.core.context import Broker, ControllerContext, LogEnd

T0 = ("t", 0)


def test_s08_of_a_broker_that_misses_a_directory_each_replica_counts_that_it_still_has():
    partial = Broker(
        1, 50, (), integrity=LogDirIntegrity(LogDirCondition.PARTIAL, broker_epochs((10, 20)))
    )
    context = ControllerContext(controller_epoch=1, brokers={1: partial})
    assert not context.holds(1, T0, 10), "it may have been in the directory that is missing"
    assert context.holds(1, T0, 50), "it joined the ISR since"
    context.log_ends[1] = {T0: LogEnd(4, 3, 0, broker_epochs((10, 20)))}
    assert context.holds(1, T0, 10)
    assert not context.holds(1, T0, 9), "what it has is of a later broker epoch"
    context.incomplete[1] = {T0}
    assert not context.holds(1, T0, 10)


def test_s08_a_replica_that_lacked_records_counts_when_its_log_was_found_complete_again():
    again = Broker(
        1, 60, (), integrity=LogDirIntegrity(LogDirCondition.CRASHED, broker_epochs((10, 50)))
    )
    context = ControllerContext(controller_epoch=1, brokers={1: again})
    assert not context.holds(1, T0, void(50)), "nothing is known of this log"
    context.log_ends[1] = {T0: LogEnd(4, 3, 0)}
    assert not context.holds(1, T0, void(50)), "the broker does not stand for the log"
    context.log_ends[1] = {T0: LogEnd(4, 3, 0, broker_epochs((10, 50)))}
    assert context.holds(1, T0, void(50))
    assert not context.holds(1, T0, void(51))
    assert not context.holds(1, T0, void(-1)), "its epoch is not known"
    context.incomplete[1] = {T0}
    assert not context.holds(1, T0, void(50))


def test_s08_a_replica_counts_for_its_own_log_where_its_broker_covers_less():
    crashed = Broker(
        1, 200, (), integrity=LogDirIntegrity(LogDirCondition.CRASHED, broker_epochs((169, 169)))
    )
    context = ControllerContext(controller_epoch=1, brokers={1: crashed})
    assert not context.holds(1, T0, 120), "another directory of the broker lost something since"
    context.log_ends[1] = {T0: LogEnd(4, 3, 0)}
    assert not context.holds(1, T0, 120), (
        "it reported where its log ends, and covers no broker epoch"
    )
    context.log_ends[1] = {T0: LogEnd(4, 3, 0, broker_epochs((120, 180)))}
    assert context.holds(1, T0, 120)
    assert context.holds(1, T0, 169)
    assert not context.holds(1, T0, 119)
    assert not context.holds(1, T0, 190)
