"""The controller's state machines: no I/O, no clock.

Read `states` (two tables of states) and `context` (the controller's tables) first. Then follow `events` (facts in) and
`effects` (actions out), and the decisions: `election`, `topic_deletion`, `reassignment`, `requested_election`.
`state_machine` has all of them together. `broker_request_queue` has the requests pending to one broker,
`control_requests` their wire messages.
"""
