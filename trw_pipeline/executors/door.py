"""Where a pool and its workers meet: an address that only they can enter.

Threads meet at `inproc://`; processes have a folder of mode 0700, and meet at an `ipc://` socket in it. Where ZeroMQ
has no ipc they meet at the loopback interface, encrypted; whoever has not got the pool's key is not heard.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import zmq

from trw_pipeline.errors import ExecutorError
from trw_pipeline.executors.protocol import KEY_BYTES
from trw_pipeline.executors.slate import Slate

Transport: TypeAlias = Literal["inproc", "ipc", "tcp"]

LONGEST_NAME = 34
"""Characters to keep free for what is put into a temporary folder: our `/trw-12345678/pool` takes 18, the socket of
`multiprocess`'s fork server 32."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Door:
    """The address of one pool.

    Attributes:
        endpoint: the pool's ROUTER.
        key: of the session; each message carries it.
        server_key: public CURVE key of the pool, for endpoints on the loopback interface.
        folder: of the pool, for processes: its socket, and the slate of each worker.
    """

    endpoint: str
    key: bytes
    server_key: bytes | None = None
    folder: str | None = None

    def connect(self, context: zmq.Context[Any], identity: bytes) -> zmq.Socket[bytes]:
        """Returns a DEALER of that identity, connected."""
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 0
        socket.routing_id = identity
        if self.server_key is not None:
            socket.curve_serverkey = self.server_key
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.connect(self.endpoint)
        return socket

    def slate_path(self, identity: bytes) -> str:
        """Returns the file of the slate of a worker process."""
        assert self.folder is not None, "threads have no slate"
        return f"{self.folder}/{identity.hex()}"

    def slate(self, identity: bytes) -> Slate:
        """Makes the slate of a worker process.

        Raises:
            ExecutorError: there is no room for it, or the folder has been removed.
        """
        try:
            return Slate.in_file(self.slate_path(identity))
        except OSError as error:
            raise ExecutorError(f"no new worker can join, {self.folder} can not be written: {error}") from error

    def check(self) -> None:
        """Makes sure that a new worker would find the pool: one that waits for a socket that is gone never comes.

        Raises:
            ExecutorError: the folder or the socket has been removed.
        """
        path = self.folder if self.server_key is not None else self.endpoint.removeprefix("ipc://")
        if path is not None and not os.path.exists(path):
            raise ExecutorError(f"{path}, where the workers meet, has been removed; no new worker can join")

    def remove(self) -> None:
        """Removes the folder, if there still is one."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def open_door(socket: zmq.Socket[bytes], transport: Transport) -> Door:
    """Binds a ROUTER.

    Raises:
        ExecutorError: there is no folder for its socket.
    """
    socket.linger = 0
    socket.router_mandatory = True
    socket.sndhwm = socket.rcvhwm = 0  # the executor bounds the jobs; a mark would drop messages
    if transport == "inproc":
        door = Door(f"inproc://trw-{next(_numbers)}", _new_key())
        socket.bind(door.endpoint)
        return door
    try:
        folder = tempfile.mkdtemp(prefix="trw-", dir=short_temp_dir())
    except OSError as error:
        raise ExecutorError(f"no folder for the sockets of the workers, set TMPDIR: {error}") from error
    try:
        return _open_to_processes(socket, transport, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _open_to_processes(socket: zmq.Socket[bytes], transport: Transport, folder: str) -> Door:
    if transport == "ipc":
        door = Door(f"ipc://{folder}/pool", _new_key(), folder=folder)
        socket.bind(door.endpoint)
        return door
    public, secret = zmq.curve_keypair()
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = public, secret
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    return Door(f"tcp://127.0.0.1:{port}", _new_key(), server_key=public, folder=folder)


def _new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def short_temp_dir() -> str:
    """Returns the folder for temporary files, or another one where its path is too long for the name of a socket.

    Raises:
        ExecutorError: none of the usual folders can be used; the message says why.
    """
    reasons: list[str] = []
    for parent in dict.fromkeys(_temp_dirs()):
        if len(os.fsencode(parent)) > zmq.IPC_PATH_MAX_LEN - LONGEST_NAME:
            reasons.append(f"{parent} is too long for the address of a socket")
        elif not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
            reasons.append(f"{parent} is not a folder that can be written")
        else:
            return parent
    raise ExecutorError(f"no folder for the sockets of the workers, set TMPDIR: {'; '.join(reasons)}")


def _temp_dirs() -> list[str]:
    try:
        usual = [tempfile.gettempdir()]
    except FileNotFoundError:  # it tries to write, and could nowhere
        usual = []
    return [*usual, *([os.environ["XDG_RUNTIME_DIR"]] if "XDG_RUNTIME_DIR" in os.environ else []), "/dev/shm", "/tmp"]
