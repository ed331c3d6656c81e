"""A process that runs the functions of one module on request: a JSON line in, a JSON line out, until its
input ends."""

import importlib
import json
import sys
import traceback


def main(module_name: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what a function prints must not look like an answer
    module = importlib.import_module(module_name)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": getattr(module, request["function"])(**request["arguments"])}
        except Exception:  # noqa: BLE001  (handed to the test, which fails with it)
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
