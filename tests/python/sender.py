"""A sender as the idempotency specification describes it: one key per event, signed bytes, 1 + 3 attempts.

Prints one JSON object: the final replies by kind, and how many events were given up.
"""

import argparse
import asyncio
import collections
import hashlib
import hmac
import json
from typing import Any

import httpx

import common

WAITS = (1.0, 5.0, 30.0)
IN_FLIGHT = 32


def request_of(event: dict[str, Any], secret: bytes) -> tuple[bytes, dict[str, str]]:
    body = json.dumps({"event": event["event"], "data": event["data"]}, sort_keys=True).encode()
    signature = hmac.new(secret, body, hashlib.sha256).hexdigest()
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": common.key_of(event),
        "X-Event-Type": event["event"],
        "X-Signature-256": f"sha256={signature}",
    }
    return body, headers


def is_retried(status: int) -> bool:
    return status in (408, 429) or 500 <= status <= 599


async def deliver(client: httpx.AsyncClient, url: str, body: bytes, headers: dict[str, str], scale: float) -> str:
    """The receiver's word on the event, or the status that ended it, or "exhausted"."""
    for wait in (*WAITS, None):
        asked = 0.0
        try:
            response = await client.post(url, content=body, headers=headers)
        except httpx.TransportError:
            pass
        else:
            if response.is_success:
                return str(response.json()["status"])
            if not is_retried(response.status_code):
                return str(response.status_code)
            text = response.headers.get("Retry-After", "")
            asked = float(text) if text.isascii() and text.isdigit() else 0.0
        if wait is not None:
            await asyncio.sleep(max(wait * scale, asked))
    return "exhausted"


async def send_all(args: argparse.Namespace) -> dict[str, int]:
    secret = common.secret(args.secret_env).encode()
    results: collections.Counter[str] = collections.Counter()
    places = asyncio.Semaphore(IN_FLIGHT)

    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:

        async def one(event: dict[str, Any]) -> None:
            body, headers = request_of(event, secret)
            async with places:
                results[await deliver(client, args.to, body, headers, args.scale)] += 1

        async with asyncio.TaskGroup() as tasks:
            for event in common.events(args.file):
                tasks.create_task(one(event))
    return dict(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="events as JSON Lines")
    parser.add_argument("--to", required=True, help="URL of the receiver")
    parser.add_argument("--secret-env", required=True, help="environment variable that holds the secret")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the waits of 1, 5 and 30 s")
    print(json.dumps(asyncio.run(send_all(parser.parse_args()))))


if __name__ == "__main__":
    main()
