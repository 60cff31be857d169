"""What the peers share: reading events, the secret from the environment, serving on a free port."""

import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI


def events(path: str) -> Iterator[dict[str, Any]]:
    """The events of a JSON Lines file. Lines end at "\\n" alone: the data holds raw U+2028 and U+0085."""
    with open(path, encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)


def key_of(event: dict[str, Any]) -> str:
    return f"{event['run_id']}:{event['event']}:{event['step_index']}"


def secret(name: str) -> str:
    """The secret in the environment variable `name`; an empty one would sign and accept anything."""
    value = os.environ.get(name, "")
    if not value:
        sys.exit(f"environment variable {name} is not set or empty")
    return value


def append_line(path: str, record: dict[str, Any]) -> None:
    with open(path, "a", encoding="ascii", newline="\n") as out:
        out.write(json.dumps(record) + "\n")


def serve(make_app: Callable[[Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]], FastAPI]) -> None:
    """Serves until SIGTERM on a free port of 127.0.0.1, which is printed once connections are taken."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    @contextlib.asynccontextmanager
    async def announce(_: FastAPI) -> AsyncIterator[None]:
        print(f"listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
        yield

    config = uvicorn.Config(make_app(announce), log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])
