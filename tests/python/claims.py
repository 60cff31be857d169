"""Removes or counts the receiver's claims of given events in Redis; keys of anything else are left alone."""

import argparse
import json

from redis import Redis

import common


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["clear", "count"])
    parser.add_argument("file", help="events as JSON Lines")
    parser.add_argument("--redis", required=True, help="URL of the de-dup store")
    args = parser.parse_args()

    redis = Redis.from_url(args.redis)
    keys = [f"idemp:{common.key_of(event)}" for event in common.events(args.file)]
    if args.command == "clear":
        redis.delete(*keys)
        return
    with redis.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.ttl(key)
        ttls = pipeline.execute()
    print(json.dumps({"claimed": sum(ttl != -2 for ttl in ttls), "for a day": sum(86000 < ttl <= 86400 for ttl in ttls)}))


if __name__ == "__main__":
    main()
