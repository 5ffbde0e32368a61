"""Parts of a broker over the simulated ZooKeeper of `tests.simulation`, event by event: for tests of one part."""
