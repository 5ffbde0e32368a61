"""The APIs served: one numbered file each, and the pipeline that takes a request from its frame to its response.

Theory of operation
===================
`api_specs.API_SPECS` is the table. It has one `ApiSpec` for each API: the factory of its handler, its budget, its gate
and the field that names the sending broker. `pipeline.RequestPipeline` passes each request through the stages in this
order:

    stage         what it does                                                    where
    ------------  --------------------------------------------------------------  -----------------------------
    decode        header and version; the bytes and elements of the API's budget  pipeline, budgets
    authenticate  once per connection: ApiVersions with a broker proof            api18_api_versions
    quota         begin to measure a request of a client that may have quotas     kbroker.quota
    authorize     only connections of brokers may send what brokers send          inter_broker_authorizer
    gate          wait until this broker is registered, or has the metadata       gates
    handle        the handler of `apiNN_*.py`                                     handlers
    throttle      count what was used; throttle_time_ms, and mute the connection  request, api00, api01
    encode        response, or error response; large ones in steps                request

The stage "authorize" runs twice: by API before the body is decoded, and by the broker that the body names. ACLs belong
to the same stage, as a column `resources` of `ApiSpec`. SASL sets `Peer.principal`, as the proof sets `Peer.broker_id`.

A handler is an object made once, with only the collaborators that it needs:

    class ListGroups:
        def __init__(self, coordinator: GroupCoordinator) -> None: ...
        async def __call__(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse: ...

It returns the response or a Deferred of it, or is a coroutine. The response to a KafkaError has its code as top-level
`error_code`. Where the response has no such field the connection is closed with one log line.

To add an API: a line in `SERVED` (`kclient.wire.versions`), a file `apiNN_*.py`, a factory in `handlers`, a row in the
table. `tests/unit/apis/test_api_specs.py` checks that they agree.
"""
