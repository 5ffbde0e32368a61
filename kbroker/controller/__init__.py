"""The controller: what the cluster should look like, decided by machines that touch nothing.

How to read it: `states` (two tables of states), `context` (what the controller knows), `events`
(facts in), `effects` (orders out), `election` and `assignment` (two rules), `deletion` (how a topic
goes), `reassignment` (how replicas move), `requested_election` (what operators want elected),
`machine` (all of it together), `channel` (what one broker still has to be told), `requests` (effects
as wire messages). `kbroker.runtime.controller` performs the effects.
"""
