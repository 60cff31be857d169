"""A receiver as the idempotency specification describes it: FastAPI, HMAC over the raw body, de-dup in Redis.

It can be told to answer the first requests of every key with 503, before or after it has taken the event.
"""

import argparse
import collections
import hashlib
import hmac
import json
from typing import Any

from fastapi import FastAPI, Header, HTTPException, Request
from redis.asyncio import Redis

import common


async def mark_seen(redis: Redis, key: str, *, ttl: int = 86400) -> bool:
    """True if the key was new (process this event), False if it is a duplicate (skip it)."""
    return await redis.set(f"idemp:{key}", "1", ex=ttl, nx=True) is True


def make_app(args: argparse.Namespace, lifespan: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan)
    redis = Redis.from_url(args.redis)
    secret = common.secret(args.secret_env).encode()
    replies: collections.Counter[str] = collections.Counter()
    requests_of: collections.Counter[str] = collections.Counter()

    def unavailable() -> HTTPException:
        replies["unavailable"] += 1
        return HTTPException(status_code=503, detail="unavailable on purpose")

    @app.post("/webhooks/langchain")
    async def receive(
        request: Request,
        x_signature_256: str = Header(...),
        idempotency_key: str = Header(..., alias="Idempotency-Key"),
    ) -> dict[str, str]:
        body = await request.body()
        expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected, x_signature_256):
            replies["bad signature"] += 1
            raise HTTPException(status_code=401, detail="bad signature")

        requests_of[idempotency_key] += 1
        fails = requests_of[idempotency_key] <= args.fail_first
        if fails and args.fail_when == "before":
            raise unavailable()
        new = await mark_seen(redis, idempotency_key)
        if new:
            envelope = json.loads(body)
            common.append_line(
                args.out, {"key": idempotency_key, "event": envelope["event"], "data": envelope["data"]}
            )
        if fails:
            raise unavailable()
        status = "ok" if new else "duplicate"
        replies[status] += 1
        return {"status": status}

    @app.get("/stats")
    async def stats() -> dict[str, int]:
        return {kind: replies[kind] for kind in ("ok", "duplicate", "bad signature", "unavailable")}

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", required=True, help="URL of the de-dup store")
    parser.add_argument("--secret-env", required=True, help="environment variable that holds the secret")
    parser.add_argument("--out", required=True, help="file to append processed events to, as JSON Lines")
    parser.add_argument("--fail-first", type=int, default=0, help="503s at the start of every key")
    parser.add_argument("--fail-when", choices=["before", "after"], default="before", help="before or after the effect")
    args = parser.parse_args()
    common.serve(lambda lifespan: make_app(args, lifespan))


if __name__ == "__main__":
    main()
