"""The integration suites of other clients, run against kbroker in place of the broker that they start themselves."""
