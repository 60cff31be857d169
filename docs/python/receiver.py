"""A receiver in Python that shares its Redis with idemp's receivers: claim, process, complete or release.

Copy this file. It needs Python 3.11, and `pip install fastapi redis uvicorn`. Beside it, in `main.py`:

    import os
    from redis.asyncio import Redis
    from receiver import make_app

    async def process(key, envelope):
        print(key, envelope["event"], envelope["data"], flush=True)

    app = make_app(Redis.from_url(os.environ["REDIS_URL"]), os.environ["WEBHOOK_SECRET"].encode(), process)

and start it with `REDIS_URL=redis://127.0.0.1:6379/0 WEBHOOK_SECRET=... uvicorn main:app --port 8000`. A request without one of
the two headers is answered 422 by FastAPI, where idemp's receiver answers 401 or 400; a sender treats all three as final.

It keeps the keys of the base document, so peers that do only
`SET idemp:<key> 1 EX <ttl> NX` work beside it as before. How much time a key has left tells what it means: up to
LONGEST_LEASE seconds, somebody is at work on the event; more, it is done.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from fastapi import FastAPI, Header, HTTPException, Request, Response
from redis.asyncio import Redis

log = logging.getLogger(__name__)

# How long a claim holds if its process dies, in seconds: at most a third of the sender's retry budget of 36 s.
LEASE = 6
# How long `process` may take, in seconds: less than the lease, which nobody renews here, and less than the sender's 5 s.
CAP = 4
# The longest lease of anybody who shares the Redis, in seconds. All marks live much longer.
LONGEST_LEASE = 12
# How long a done event is remembered, in seconds: 24 h for events per call, 7 days per run, 30 days for daily summaries.
TTL = 86_400

# They compare the owner, as nobody may touch what another one has claimed after a lease ran out.
COMPLETE = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then
  return redis.call('EXPIRE', KEYS[1], ARGV[2])
end
if not held then
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
end
return 0
"""
RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""

Claim = Literal["claimed", "in progress", "duplicate"]


async def claim(redis: Redis, key: str, owner: str) -> tuple[Claim, int]:
    """What the key's state is, and for how many seconds somebody else may still be at work."""
    if await redis.set(f"idemp:{key}", owner, ex=LEASE, nx=True):
        return "claimed", 0
    left = await redis.pttl(f"idemp:{key}")
    if left == -2:  # It has ended in between: the next copy claims it.
        return "in progress", 1
    if 0 <= left <= LONGEST_LEASE * 1000:
        return "in progress", max(-(-left // 1000), 1)
    return "duplicate", 0


def make_app(redis: Redis, secret: bytes, process: Callable[[str, Any], Awaitable[None]], **options: Any) -> FastAPI:
    """An app that calls `process(key, envelope)` once per event. It raises if the event was not taken."""
    if not secret:
        raise ValueError("an empty secret accepts anything")
    app = FastAPI(**options)
    complete = redis.register_script(COMPLETE)
    release = redis.register_script(RELEASE)

    @app.post("/webhooks/langchain")
    async def receive(
        request: Request,
        response: Response,
        x_signature_256: str = Header(...),
        idempotency_key: str = Header(..., alias="Idempotency-Key"),
    ) -> dict[str, str]:
        body = await request.body()
        expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected.encode(), x_signature_256.encode()):
            raise HTTPException(status_code=401, detail="bad signature")

        owner = f"1|{uuid.uuid4()}"
        state, left = await claim(redis, idempotency_key, owner)
        if state == "duplicate":
            return {"status": "duplicate"}
        if state == "in progress":
            response.status_code = 503
            response.headers["Retry-After"] = str(left)
            return {"status": "in_progress"}
        name = f"idemp:{idempotency_key}"
        try:
            async with asyncio.timeout(CAP):
                await process(idempotency_key, json.loads(body))
        except BaseException as error:
            await release(keys=[name], args=[owner])
            if isinstance(error, Exception):
                log.exception("the event was not taken")
                raise HTTPException(status_code=500, detail="handler failed") from error
            raise
        await complete(keys=[name], args=[owner, TTL])
        return {"status": "ok"}

    return app
