"""What a cluster serves, from Ray Serve's applications and the routes of a proxy."""

from serve.deploy.routing import Route, application_of
from serve.deploy.served import Application, ServedVersion, served

OLD, NEW = "0" * 12, "a" * 12


def application(version: str, state: str = "RUNNING") -> Application:
    return Application(application_of("reviews", version), state, 2)


def test_a_version_has_the_route_that_leads_to_it() -> None:
    routes = {"/reviews": Route(NEW, model="reviews"), "/other": Route("b" * 12)}
    gone, live = application(OLD, "DELETING"), application(NEW)
    assert served([gone, live], routes, {}) == (
        ServedVersion("reviews", NEW, "/reviews", 100, "RUNNING", 2),
        ServedVersion("reviews", OLD, None, 0, "DELETING", 2),
    )


def test_a_rollout_shares_its_route() -> None:
    routes = {"/reviews": Route(OLD, NEW, 20, model="reviews")}
    found = served([application(NEW), application(OLD)], routes, {})
    assert [(each.version, each.percent) for each in found] == [(OLD, 80), (NEW, 20)]


def test_without_our_haproxy_ray_serve_s_routes_count() -> None:
    both = [application(NEW), Application("someone-elses", "RUNNING", 1)]
    found = served(both, None, {"/reviews": application(NEW).name})
    assert [(each.name, each.version, each.route) for each in found] == [
        ("reviews", NEW, "/reviews"),
        ("someone-elses", None, None),
    ]


def test_a_cluster_without_applications_serves_nothing() -> None:
    assert served([], {}, {}) == ()


def test_models_with_the_same_version_keep_their_own_routes() -> None:
    same = [Application(application_of(name, NEW), "RUNNING", 1) for name in ("a", "b")]
    routes = {"/one": Route(NEW, model="a"), "/two": Route(NEW, model="b")}
    assert [(each.name, each.route) for each in served(same, routes, {})] == [
        ("a", "/one"),
        ("b", "/two"),
    ]
