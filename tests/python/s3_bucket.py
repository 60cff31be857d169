"""Makes a bucket, looks into it, or changes it behind the store's back, and prints one JSON value."""

import argparse
import json

import boto3
from botocore.config import Config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["make", "count", "put", "delete"])
    parser.add_argument("--endpoint", required=True, help="URL for S3")
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--prefix", default="", help="of the store")
    parser.add_argument("--path", default="", help="of the object, below the prefix")
    parser.add_argument("--text", default="", help="of the object")
    args = parser.parse_args()

    s3 = boto3.client("s3", endpoint_url=args.endpoint, config=Config(s3={"addressing_style": "path"}))
    prefix = f"{args.prefix}/" if args.prefix else ""
    if args.command == "make":
        s3.create_bucket(Bucket=args.bucket)
    elif args.command == "put":
        s3.put_object(Bucket=args.bucket, Key=prefix + args.path, Body=args.text.encode())
    elif args.command == "delete":
        s3.delete_object(Bucket=args.bucket, Key=prefix + args.path)
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=args.bucket, Prefix=prefix)
    paths = [item["Key"].removeprefix(prefix) for page in pages for item in page.get("Contents", [])]
    roots = {root: {path.split("/", 1)[1] for path in paths if path.startswith(f"{root}/")} for root in ["dlq", "replayed"]}
    counts = {root: len(below) for root, below in roots.items()}
    print(json.dumps({**counts, "both": len(roots["dlq"] & roots["replayed"])}))


if __name__ == "__main__":
    main()
