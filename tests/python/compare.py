"""Compares the events that were to arrive with those that did, and prints one JSON object that counts them.

Data is compared as CPython spells it with sorted keys, so that 1, 1.0 and true differ and integers keep every digit.
"""

import argparse
import collections
import json

import common


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sent", help="events as they were given to the sender")
    parser.add_argument("processed", help="what the receiver wrote, {key, event, data} per line")
    args = parser.parse_args()

    def text(event: dict) -> str:
        return json.dumps({"event": event["event"], "data": event["data"]}, sort_keys=True)

    sent = {common.key_of(event): text(event) for event in common.events(args.sent)}
    processed = [(event["key"], text(event)) for event in common.events(args.processed)]
    times = collections.Counter(key for key, _ in processed)
    print(
        json.dumps(
            {
                "sent": len(sent),
                "processed": len(processed),
                "missing": len(sent.keys() - times.keys()),
                "unknown": len(times.keys() - sent.keys()),
                "more than once": sum(count > 1 for count in times.values()),
                "changed": sum(sent.get(key) != body for key, body in processed),
            }
        )
    )


if __name__ == "__main__":
    main()
