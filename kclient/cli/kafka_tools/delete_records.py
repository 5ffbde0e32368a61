"""kafka-delete-records: deletes the records below an offset."""

from __future__ import annotations

from typing import Any

from kclient.cli.kafka_tools import java_order
from kclient.cli.kafka_tools.java_errors import described
from kclient.cli.kafka_tools.json_files import partitions_in, repeated
from kclient.cli.kafka_tools.options import Given, Option
from kclient.cli.kafka_tools.tool import (
    Failure,
    Tool,
    admin_settings,
    print_error,
    print_message,
    require,
    run_admin,
    text_of,
)
from kclient.errors import KafkaError

OPTIONS = (
    Option("bootstrap-server", "The brokers to connect to; required.", "server(s) to use for bootstrapping"),
    Option("offset-json-file", 'JSON: {"version":1,"partitions":[{"topic":"foo","partition":1,"offset":1}]}; required.',
           "Offset json file path"),
    Option("command-config", "Properties file of the admin client.", "command config property file path"),
)  # fmt: skip


def main(given: Given) -> int | None:
    """Check the command line and delete the records."""
    require(given, "bootstrap-server", "offset-json-file")
    try:
        settings = admin_settings(given)
        entries = partitions_in(
            text_of(given.value("offset-json-file")), "The input string", "offset"
        )
        if twice := repeated(tp for tp, _ in entries):
            raise Failure(
                f"Offset json file contains duplicate topic partitions: {','.join(twice)}"
            )
    except Failure as problem:
        return print_error(problem)

    async def body(admin: Any) -> int:
        print("Executing records delete operation", flush=True)
        answers = await admin.delete_records({tp: at for tp, (at,) in entries}, raise_errors=False)
        print("Records delete operation completed:")
        for tp in java_order.partitions(answers):
            answer = answers[tp]
            if isinstance(answer, KafkaError):
                print(f"partition: {tp}\terror: {described(answer)}")
            else:
                print(f"partition: {tp}\tlow_watermark: {answer}")
        return 0

    return run_admin(TOOL.print_usage, settings, body, print_message)


TOOL = Tool(
    "kafka-delete-records",
    "This tool helps to delete records of the given partitions down to the specified offset.",
    OPTIONS,
    main,
)
