"""Our Standard Webhooks headers against the `standardwebhooks` library, both ways.

`receive` serves an endpoint where the library judges every request. `send` posts events that the library signed, and
requests that a receiver has to refuse, and prints one JSON object: what was answered to each kind.
"""

import argparse
import base64
import collections
import datetime
import json
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException, Request
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

import common


def make_app(args: argparse.Namespace, lifespan: Any) -> FastAPI:
    app = FastAPI(lifespan=lifespan)
    webhook = Webhook(common.secret(args.secret_env))
    verdicts: collections.Counter[str] = collections.Counter()

    @app.post("/webhooks/langchain")
    async def receive(request: Request) -> dict[str, str]:
        body = await request.body()
        try:
            envelope = webhook.verify(body, dict(request.headers))
        except WebhookVerificationError as error:
            verdicts[f"refused: {error}"] += 1
            raise HTTPException(status_code=401, detail="bad signature") from None
        verdicts["verified"] += 1
        common.append_line(
            args.out, {"key": request.headers["webhook-id"], "event": envelope["event"], "data": envelope["data"]}
        )
        return {"status": "ok"}

    @app.get("/stats")
    async def stats() -> dict[str, int]:
        return dict(verdicts)

    return app


def now() -> datetime.datetime:
    return datetime.datetime.now(tz=datetime.timezone.utc)


def signed(webhook: Webhook, key: str, at: datetime.datetime, body: str) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "webhook-id": key,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": webhook.sign(key, at, body),
    }


def refused_requests(webhook: Webhook, key: str, body: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Requests that look like a good one and are not, by the name of what is wrong."""
    good = signed(webhook, key, now(), body)
    ten_minutes = datetime.timedelta(minutes=10)
    stranger = Webhook(base64.b64encode(b"another secret of twenty-nine").decode())
    return {
        "tampered body": (body.replace("1", "2"), good),
        "another key beside the id": (body, {**good, "Idempotency-Key": key + "0"}),
        "other id": (body, {**good, "webhook-id": key + "0"}),
        "other timestamp": (body, {**good, "webhook-timestamp": str(int(now().timestamp()) - 1)}),
        "old": (body, signed(webhook, key, now() - ten_minutes, body)),
        "from the future": (body, signed(webhook, key, now() + ten_minutes, body)),
        "another secret": (body, signed(stranger, key, now(), body)),
        "no signature": (body, {name: text for name, text in good.items() if name != "webhook-signature"}),
        "empty signature": (body, {**good, "webhook-signature": "v1,"}),
    }


def send(args: argparse.Namespace) -> None:
    webhook = Webhook(common.secret(args.secret_env))
    answers: collections.Counter[str] = collections.Counter()
    with httpx.Client(timeout=5.0, trust_env=False) as client:
        refused = refused_requests(webhook, "refused:tool_end:1", '{"data": {"n": 1}, "event": "tool_end"}')
        for name, (body, headers) in refused.items():
            answers[f"{name}: {client.post(args.to, content=body, headers=headers).status_code}"] += 1
        for event in common.events(args.file):
            # As the library's own users would write it: no sorted keys, no escapes.
            body = json.dumps({"event": event["event"], "data": event["data"]}, ensure_ascii=False)
            headers = signed(webhook, common.key_of(event), now(), body)
            response = client.post(args.to, content=body.encode(), headers=headers)
            answers[response.json()["status"] if response.is_success else str(response.status_code)] += 1
    print(json.dumps(answers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    receive = commands.add_parser("receive")
    receive.add_argument("--out", required=True, help="file to append verified events to, as JSON Lines")
    sender = commands.add_parser("send")
    sender.add_argument("file", help="events as JSON Lines")
    sender.add_argument("--to", required=True, help="URL of the receiver")
    for command in (receive, sender):
        command.add_argument("--secret-env", required=True, help="environment variable that holds the secret")
    args = parser.parse_args()
    if args.command == "receive":
        common.serve(lambda lifespan: make_app(args, lifespan))
    else:
        send(args)


if __name__ == "__main__":
    main()
