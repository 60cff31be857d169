"""Reads a queue until it is empty, checks what came against what was sent, and prints one JSON object that counts.

Written from the specification: the body is what CPython prints for {"event", "data"} with sorted keys, its HMAC-SHA256
stands in the attribute x-signature-256, its key in idempotency-key.
"""

import argparse
import collections
import hashlib
import hmac
import json
import os

import boto3


def key_of(event: dict) -> str:
    return f"{event['run_id']}:{event['event']}:{event['step_index']}"


def body_of(event: dict) -> str:
    return json.dumps({"event": event["event"], "data": event["data"]}, sort_keys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sent", help="events as they were given to the sender, JSON Lines")
    parser.add_argument("--endpoint", required=True, help="URL for SQS")
    parser.add_argument("--queue", required=True, help="URL of the queue")
    parser.add_argument("--secret-env", required=True, help="name of the variable that holds the secret")
    args = parser.parse_args()
    secret = os.environ[args.secret_env].encode()

    with open(args.sent, encoding="utf-8", newline="\n") as lines:
        sent = {key_of(event): body_of(event) for event in map(json.loads, lines)}

    sqs = boto3.client("sqs", endpoint_url=args.endpoint)
    times = collections.Counter()
    order = collections.defaultdict(list)
    counts = collections.Counter({"changed": 0, "bad signature": 0, "bad event type": 0})
    empty = 0
    while empty < 3:
        answer = sqs.receive_message(
            QueueUrl=args.queue, MessageAttributeNames=["All"], MaxNumberOfMessages=10, WaitTimeSeconds=0
        )
        messages = answer.get("Messages", [])
        empty = 0 if messages else empty + 1
        for message in messages:
            attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
            key, body = attributes["idempotency-key"], message["Body"]
            times[key] += 1
            run, event_type, step = key.split(":")
            order[run].append(int(step))
            digest = hmac.new(secret, body.encode(), hashlib.sha256).hexdigest()
            counts["bad signature"] += attributes["x-signature-256"] != f"sha256={digest}"
            counts["bad event type"] += attributes["event-type"] != event_type
            counts["changed"] += sent.get(key) != body
        if messages:
            entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)]
            sqs.delete_message_batch(QueueUrl=args.queue, Entries=entries)
    print(
        json.dumps(
            {
                "received": sum(times.values()),
                "missing": len(sent.keys() - times.keys()),
                "unknown": len(times.keys() - sent.keys()),
                "more than once": sum(count > 1 for count in times.values()),
                "runs out of order": sum(steps != sorted(steps) for steps in order.values()),
                **counts,
            }
        )
    )


if __name__ == "__main__":
    main()
