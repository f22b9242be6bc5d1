"""A cluster's state: draining nodes, free CPUs, its address and version."""

from __future__ import annotations

import os

from raytrain.driver.ray_internals.versions import private


def draining() -> set[str]:
    """Return the ids of draining nodes: a spot instance that is reclaimed, or `ray drain-node`."""
    module = private("ray._private.state", "state")
    if hasattr(getattr(module, "state", None), "get_draining_nodes"):
        return set(module.state.get_draining_nodes() or {})
    return set()


def free_cpus() -> dict[str, float]:
    """Return the unreserved CPUs of each node, by its id; empty with other versions of Ray."""
    module = private("ray._private.state", "available_resources_per_node")
    if module is None:
        return {}
    return {node: found.get("CPU", 0.0) for node, found in module.available_resources_per_node().items()}


def found_cluster() -> str | None:
    """Return the cluster that `auto` means: the one that is seen to run on this machine, or else the last one started,
    which may be gone."""
    services = private("ray._private.services", "find_gcs_addresses")
    utils = private("ray._private.utils", "read_ray_address")
    if services is None or utils is None:
        return None
    running = services.find_gcs_addresses()
    return next(iter(running)) if len(running) == 1 else utils.read_ray_address() or None


def ask_version(address: str, token: str) -> str | None:
    """Return the version of Ray of the cluster at HOST:PORT, within seconds, where `ray.init` would try for long and
    print each try; None where that cannot be asked so.

    Raises:
        PermissionError: the cluster lets nobody in with this token.
        ConnectionError: what is there is no cluster.
    """
    grpc = private("grpc", "insecure_channel")  # which Ray brings
    messages = private("ray.core.generated.gcs_service_pb2", "CheckAliveRequest", "CheckAliveReply")
    if messages is None or grpc is None or os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return None
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        alive = channel.unary_unary(
            "/ray.rpc.NodeInfoGcsService/CheckAlive",
            request_serializer=messages.CheckAliveRequest.SerializeToString,
            response_deserializer=messages.CheckAliveReply.FromString,
        )
        try:
            metadata = (("authorization", f"Bearer {token}"),) if token else ()
            return alive(messages.CheckAliveRequest(), timeout=8, metadata=metadata).ray_version
        except grpc.RpcError as error:
            code = error.code()  # type: ignore[attr-defined]
            if code == grpc.StatusCode.UNAUTHENTICATED:
                raise PermissionError from None
            slow = code == grpc.StatusCode.DEADLINE_EXCEEDED
            raise ConnectionError("nothing within 8 s" if slow else "something else answers there") from None
