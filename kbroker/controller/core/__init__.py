"""The controller's state machines: no I/O, no clock.

How to read it: `states` (two tables of states), `context` (what the controller knows), `events` (facts in), `effects`
(actions out), `election`, `topic_deletion`, `reassignment`, `requested_election`, `machine` (all of it together),
`broker_request_queue` (requests pending to one broker), `control_requests` (effects as wire messages).
"""
