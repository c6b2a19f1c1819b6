"""An operator's commands on ZooKeeper: set access rights after a new password, and pin owners to
their slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoAuthError, NoNodeError
from kazoo.security import OPEN_ACL_UNSAFE

from delayservice.base.errors import DelayServiceError
from delayservice.config.cluster import ZooKeeper
from ha.kazoo_client import acl_of, connected
from ha.notes import PinNote, encode


def set_rights(options: ZooKeeper, done: Callable[[int], None] = lambda _: None) -> int:
    """Set the access rights of every ZooKeeper node under ``zookeeper.root`` to those of the
    settings; return their number. Nodes that a running service writes meanwhile get the rights with
    which that service was started. May be repeated, also after a failure. ``done``: called with the
    number of nodes so far.
    """
    acl = acl_of(options) or OPEN_ACL_UNSAFE
    count = 0
    with _writing(options, options.root) as client:
        for path in _paths(client, options.root):
            with suppress(NoNodeError):  # its session ended meanwhile
                client.set_acls(path, acl)
                count += 1
                done(count)
    return count


@contextmanager
def _writing(options: ZooKeeper, path: str) -> Iterator[KazooClient]:
    try:
        with connected(options) as client:
            yield client
    except NoAuthError as exc:
        raise DelayServiceError(
            f"ZooKeeper does not let {options.username or 'everybody'} write {path}: log in as a "
            "user who may write there now, as the nodes do, and name others in zookeeper.accepted"
        ) from exc
    except KazooException as exc:
        raise DelayServiceError(f"ZooKeeper failed at {path}, repeat it: {exc!r}") from exc


def _paths(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    with suppress(NoNodeError):
        for name in client.get_children(path):
            yield from _paths(client, f"{path}/{name}")


def set_pin(options: ZooKeeper, note: PinNote | None) -> bool:
    """Pin owners to their slices, so that no owner hands over just because a better node exists;
    ``note`` None: end that. Return whether owners were pinned before. May be repeated.
    """
    path = f"{options.root}/pinned"
    with _writing(options, path) as client:
        was_pinned = client.exists(path) is not None
        if note is None:
            with suppress(NoNodeError):
                client.delete(path)
        elif was_pinned:
            client.set(path, encode(note))
        else:
            client.create(path, encode(note), makepath=True)
    return was_pinned
