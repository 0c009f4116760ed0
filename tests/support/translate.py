"""Translate a template with the SAM translator of the running environment: JSON from stdin to stdout.

A program for another environment, which has its own version of the translator: it imports nothing of ours.
"""

import json
import os
import sys
from types import SimpleNamespace

from samtranslator.translator.transform import transform  # type: ignore[import-untyped]

if __name__ == "__main__":
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    template, parameters = json.load(sys.stdin)
    json.dump(transform(template, parameters, SimpleNamespace(load=dict)), sys.stdout)
