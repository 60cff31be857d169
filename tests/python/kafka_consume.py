"""Reads a topic from its beginning to its end, checks every message against the events that were sent, and prints one
JSON object that counts them.

The value must be, byte for byte, what CPython prints for the event, and its signature must verify.
"""

import argparse
import collections
import hashlib
import hmac
import json
import sys
import time

import common
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

# Without a message and not at the end.
PATIENCE = 60.0
# At the end, for a broker that does not know well where that is.
SILENCE = 1.0


def messages(brokers: str, topic: str) -> list[Message]:
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "idemp-tests", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    read, at_end, last = [], set(), time.monotonic()
    while len(at_end) < len(partitions) or time.monotonic() < last + SILENCE:
        message = consumer.poll(0.1)
        if message is None:
            if time.monotonic() > last + PATIENCE:
                sys.exit(f"the end does not come, after {len(read)} messages")
        elif message.error() is None:
            read.append(message)
            at_end.discard(message.partition())
            last = time.monotonic()
        elif message.error().code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
    consumer.close()
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("brokers")
    parser.add_argument("topic")
    parser.add_argument("sent", help="events as they were given to the sender")
    parser.add_argument("--secret-env", required=True, metavar="NAME")
    args = parser.parse_args()
    secret = common.secret(args.secret_env).encode()

    def body(event: dict) -> bytes:
        return json.dumps({"event": event["event"], "data": event["data"]}, sort_keys=True).encode()

    sent = {common.key_of(event): event for event in common.events(args.sent)}
    read = messages(args.brokers, args.topic)
    times: collections.Counter[str] = collections.Counter()
    wrong: collections.Counter[str] = collections.Counter()
    for message in read:
        headers = message.headers() or []
        values = {name: value.decode("ascii") for name, value in headers}
        key = values["idempotency-key"]
        times[key] += 1
        event = sent.get(key)
        value = message.value()
        signature = "sha256=" + hmac.new(secret, value, hashlib.sha256).hexdigest()
        wrong["bad signature"] += not hmac.compare_digest(signature, values["x-signature-256"])
        wrong["other headers"] += [name for name, _ in headers] != ["idempotency-key", "event-type", "x-signature-256"]
        if event is not None:
            wrong["other body"] += value != body(event)
            wrong["other key"] += message.key() != event["run_id"].encode()
            wrong["other type"] += values["event-type"] != event["event"]
    print(
        json.dumps(
            {
                "messages": len(read),
                "distinct": len(times),
                "missing": len(sent.keys() - times.keys()),
                "unknown": len(times.keys() - sent.keys()),
                "more than once": sum(count > 1 for count in times.values()),
                "wrong": {name: count for name, count in wrong.items() if count},
            }
        )
    )


if __name__ == "__main__":
    main()
