"""The pure part of the log: producer states, transactions, leader epochs, compaction and the names of files. No I/O."""
