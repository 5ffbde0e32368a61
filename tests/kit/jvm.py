"""Options of the JVMs that tests start. Benchmarks do not use them."""

SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For a JVM that ends after seconds: without the optimising compiler and the collector's threads it takes half as much
of the processor.
"""
