"""Connects this process to a Ray cluster."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cluster import access, local
from jobs.errors import ClusterError, first_line
from raywinnow import paths

LOG = logging.getLogger(__name__)
NAMESPACE = "winnow"
RAY_CLIENT = "ray://"
"""How the address of a cluster begins that Ray's client is to be used for."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The cluster that this process is connected to."""

    address: str
    serve_port: int


@contextlib.contextmanager
def connect(
    *,
    address: str | None = None,
    start: bool = True,
    insecure_local: bool | None = None,
    log: Callable[[str], None] = lambda _: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[Connection]:
    """Join a cluster for the length of a `with` block.

    Joins the cluster at `address`, else at `RAY_ADDRESS` (set inside a Ray job), else the local
    cluster; with `start`, starts the local cluster if it is not up, and leaves it running.
    `insecure_local` True accepts a cluster without tokens on this machine, and None accepts any
    cluster, for commands that only read. `log` gets what is waited for. `meanwhile` is called in
    a thread while the local cluster starts; it must raise nothing, and may import ray. Otherwise
    import modules that import ray inside the block, because Ray reads its environment on import.

    Raises:
        ClusterError: if there is no cluster to join, or it requires no token.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    cluster = local.at(address) if address else local.running()
    if address is None and cluster is None:
        if not start:
            raise ClusterError("no cluster is up; start one with `winnow up` or name --address")
        log("starting Ray on this machine")
        cluster = _start(meanwhile)
    else:
        log(f"joining Ray at {address or (cluster and cluster.address)}")
    if cluster:
        address = cluster.address
        _check_ray_is_not_loaded()
        os.environ.update(local.environment())
    assert address
    dashboard = _join(address)
    import ray

    try:
        if cluster is None and insecure_local is not None:  # the local cluster has a token
            access.require_tokens(dashboard, insecure_local=insecure_local)
        yield Connection(address, cluster.serve_port if cluster else local.SERVE_PORT)
    finally:
        ray.shutdown()


def _join(address: str) -> str:
    """Connect this process to a cluster; returns the address of Ray's dashboard."""
    import ray
    import ray.exceptions

    try:
        context = ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=True,
            **_job_config(address),
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = first_line(error)
        raise ClusterError(
            f"the Ray cluster at {address} cannot be joined: {reason}; {access.TOKEN_HINT}"
        ) from None
    _keep_off_stdout()
    return str(context.dashboard_url)


def _keep_off_stdout() -> None:
    """Logs the raylet's warnings, which Ray prints on stdout, where commands print results."""
    from ray._private import worker

    def logged(message: dict[str, Any], *_: object, **__: object) -> None:
        LOG.info("%s", " ".join(message["lines"]))

    worker.print_to_stdstream = logged  # Ray has no setting for it


def _start(meanwhile: Callable[[], None]) -> local.LocalCluster:
    """Start the local cluster, and call a function in the meantime."""
    _check_ray_is_not_loaded()
    os.environ.update(local.environment())  # before the function imports ray
    thread = threading.Thread(target=meanwhile)
    thread.start()
    cluster, _ = local.start()
    thread.join()  # two threads that import the same modules could see half of one
    return cluster


def _job_config(address: str) -> dict[str, Any]:
    """Options of `ray.init` that keep this process's folders off the import path of workers.

    Ray would send the working directory and the folder of the script. A checkout that Winnow runs
    from is sent. Ray's own client sends neither.
    """
    if address.startswith(RAY_CLIENT):
        return {}
    import ray.job_config

    config = ray.job_config.JobConfig(_py_driver_sys_path=paths.checkout())
    # what Ray asks before it adds the two folders
    config._runtime_env_has_working_dir = lambda: True
    return {"job_config": config}


def _check_ray_is_not_loaded() -> None:
    """Raise ClusterError if ray was imported too early; Ray would otherwise hang for minutes."""
    is_set = all(os.environ.get(name) == value for name, value in local.READ_ON_IMPORT.items())
    if "ray" in sys.modules and not is_set:
        raise ClusterError(
            "ray was imported before the local cluster was joined; import it, and Winnow's modules"
            " that use it, inside `with session.connect()`"
        )
