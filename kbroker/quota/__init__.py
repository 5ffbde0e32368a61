"""Client quotas (KIP-13, 124, 219, 257, 546, 599): byte rates, request time and controller mutations of each client.

`core` decides which quota applies and how long a client is throttled. `client_quota_manager` measures requests.
`client_quota_config` reads the quotas from ZooKeeper, and `client_quota_admin` changes them. The data flow is in
docs/design/client-quotas.md.
"""
