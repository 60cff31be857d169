"""A consumer of webhook events in a Redis stream, written from the companion pages: it reads as a group and acknowledges.

It reads what there is, writes {key, event, data} for each entry whose signature is right, and prints one JSON object that
counts. The signature is made over the envelope, which is put together from the fields.
"""

import argparse
import hashlib
import hmac
import json

import redis

import common


def is_signed(secret: bytes, fields: dict[bytes, bytes]) -> bool:
    body = b'{"data": ' + fields[b"payload"] + b', "event": "' + fields[b"event_type"] + b'"}'
    expected = "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, fields[b"signature"].decode("ascii"))


def client(url: str, cluster: bool) -> redis.Redis | redis.RedisCluster:
    return redis.RedisCluster.from_url(url) if cluster else redis.Redis.from_url(url)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--stream", required=True)
    parser.add_argument("--secret-env", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    secret = common.secret(args.secret_env).encode()

    counts = {"entries": 0, "verified": 0, "signed otherwise": 0, "canonical": 0}
    server = client(args.url, args.cluster)
    server.xgroup_create(args.stream, "consumers", id="0", mkstream=True)
    while batch := server.xreadgroup("consumers", "one", {args.stream: ">"}, count=100):
        # A list of pairs, or with the newer protocol a dictionary of lists of pages.
        pages = [page for _, page in batch] if isinstance(batch, list) else [page[0] for page in batch.values()]
        for entry, fields in (pair for page in pages for pair in page):
            counts["entries"] += 1
            if not is_signed(secret, fields):
                counts["signed otherwise"] += 1
                continue
            counts["verified"] += 1
            data = json.loads(fields[b"payload"])
            counts["canonical"] += json.dumps(data, sort_keys=True).encode() == fields[b"payload"]
            record = {
                "key": fields[b"idempotency_key"].decode("ascii"),
                "event": fields[b"event_type"].decode("ascii"),
                "data": data,
            }
            common.append_line(args.out, record)
            server.xack(args.stream, "consumers", entry)
    counts["pending"] = server.xpending(args.stream, "consumers")["pending"]
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
